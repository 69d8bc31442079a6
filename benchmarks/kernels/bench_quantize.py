"""Price of the round trips."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from timing import main

from benthic.kernels.quantize import hadamard, round_trip_fp4, round_trip_fp8
from benthic.kernels.quantize.cases import activations

Case = tuple[str, Callable[..., Any], int, int]


def cases(rows: int, device: torch.device) -> Iterator[Case]:
    """(name, call, bytes, operations) at sizes of the bundled model."""
    x = activations(rows).to(device)
    for name, rounding in (
        ("fp8 64", lambda: round_trip_fp8(x, 64)),
        ("fp4 32", lambda: round_trip_fp4(x, 32)),
        ("hadamard", lambda: hadamard(x)),
    ):
        yield name, lambda impl, rounding=rounding: rounding(), 8 * x.numel(), 0


if __name__ == "__main__":
    main("quantize", cases)
