"""Price of swiglu."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from timing import main, on_device

from benthic.kernels.swiglu import swiglu
from benthic.kernels.swiglu.cases import inputs

Case = tuple[str, Callable[..., Any], int, int]


def cases(rows: int, device: torch.device) -> Iterator[Case]:
    """(name, call, bytes, operations) at sizes of the bundled model."""
    given = on_device(inputs(3 * rows, width=128), device)
    yield "3 picks, width 128", partial(swiglu, **given), 12 * 3 * rows * 128, 0


if __name__ == "__main__":
    main("swiglu", cases)
