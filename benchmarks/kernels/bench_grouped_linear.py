"""Price of grouped_linear."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from timing import main

from benthic.kernels.grouped_linear import grouped_linear
from benthic.kernels.linear import by_columns
from benthic.kernels.moe_permute import moe_permute
from benthic.kernels.moe_permute.cases import picks

Case = tuple[str, Callable[..., Any], int, int]


def cases(rows: int, device: torch.device) -> Iterator[Case]:
    """(name, call, bytes, operations) at sizes of the bundled model."""
    plan = moe_permute(picks("random", rows, 16).to(device), 16, 1)
    weight = by_columns(torch.randn(16, 256, 256, device=device))
    values = torch.randn(len(plan.source), 256, device=device)
    flops = 2 * len(plan.source) * 256 * 256
    yield "16 experts 256x256", partial(grouped_linear, values, weight, plan.group_ends), weight.nbytes, flops


if __name__ == "__main__":
    main("grouped_linear", cases)
