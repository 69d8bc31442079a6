"""Price of linear, with weights as they train and as they serve."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from timing import main, on_device

from benthic.kernels.linear import by_columns, linear
from benthic.kernels.linear.cases import inputs

Case = tuple[str, Callable[..., Any], int, int]


def cases(rows: int, device: torch.device) -> Iterator[Case]:
    """(name, call, bytes, operations) at sizes of the bundled model."""
    for shape in ((592, 256), (256, 128), (4096, 256)):
        given = on_device(inputs(rows, shape=shape), device)
        size = shape[0] * shape[1]
        yield f"{shape} as trained", partial(linear, **given), 4 * size, 2 * rows * size
        given["weight"] = by_columns(given["weight"])
        yield f"{shape} as served", partial(linear, **given), 4 * size, 2 * rows * size


if __name__ == "__main__":
    main("linear", cases)
