"""Price of moe_permute and moe_combine."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from timing import main

from benthic.kernels.moe_permute import moe_combine, moe_permute
from benthic.kernels.moe_permute.cases import picks

Case = tuple[str, Callable[..., Any], int, int]


def cases(rows: int, device: torch.device) -> Iterator[Case]:
    """(name, call, bytes, operations) at sizes of the bundled model."""
    experts = picks("random", rows, 16).to(device)
    plan = moe_permute(experts, 16, 1)
    values = torch.randn(len(plan.source), 256, device=device)
    yield "plan", partial(moe_permute, experts, 16, 1), 8 * 4 * experts.numel(), 0
    yield "combine 3 of 256", partial(moe_combine, values, plan), 4 * 4 * rows * 256, 0


if __name__ == "__main__":
    main("moe_permute", cases)
