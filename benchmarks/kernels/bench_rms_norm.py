"""Price of rms_norm."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from timing import main, on_device

from benthic.kernels.rms_norm import rms_norm
from benthic.kernels.rms_norm.cases import inputs

Case = tuple[str, Callable[..., Any], int, int]


def cases(rows: int, device: torch.device) -> Iterator[Case]:
    """(name, call, bytes, operations) at sizes of the bundled model."""
    for width in (64, 256):
        given = on_device(inputs(rows, width=width), device)
        yield f"width {width}", partial(rms_norm, **given), 8 * rows * width, 0


if __name__ == "__main__":
    main("rms_norm", cases)
