"""Price of apply_rope."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from timing import main, on_device

from benthic.kernels.rope import apply_rope
from benthic.kernels.rope.cases import inputs

Case = tuple[str, Callable[..., Any], int, int]


def cases(rows: int, device: torch.device) -> Iterator[Case]:
    """(name, call, bytes, operations) at sizes of the bundled model."""
    for heads in (1, 8):
        given = on_device(inputs(rows, heads=heads, dim=64), device)
        yield f"{heads} heads of 64", partial(apply_rope, **given), 8 * rows * heads * 64, 0


if __name__ == "__main__":
    main("rope", cases)
