"""Price of moe_route."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from timing import main, on_device

from benthic.kernels.moe_route import moe_route
from benthic.kernels.moe_route.cases import inputs

Case = tuple[str, Callable[..., Any], int, int]


def cases(rows: int, device: torch.device) -> Iterator[Case]:
    """(name, call, bytes, operations) at sizes of the bundled model."""
    for experts in (16, 256):
        given = on_device(inputs(rows, num_experts=experts), device)
        yield f"{experts} experts", partial(moe_route, **given), 4 * rows * experts, 0


if __name__ == "__main__":
    main("moe_route", cases)
