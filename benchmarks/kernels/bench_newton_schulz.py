"""Price of newton_schulz."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from timing import main

from benthic.kernels.newton_schulz import newton_schulz

Case = tuple[str, Callable[..., Any], int, int]


def cases(rows: int, device: torch.device) -> Iterator[Case]:
    """(name, call, bytes, operations) at sizes of the bundled model."""
    # "rows" counts stacked matrices of an expert's size.
    g = torch.randn(rows, 256, 128, device=device)
    yield "256x128", partial(newton_schulz, g), 8 * g.numel(), rows * 10 * (4 * 128 * 128 * 256 + 2 * 128**3)


if __name__ == "__main__":
    main("newton_schulz", cases)
