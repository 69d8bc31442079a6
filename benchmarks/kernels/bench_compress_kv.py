"""Price of compression: raw rows of completed blocks to entries."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from timing import main

from benthic.kernels.compress_kv import compress_kv
from benthic.kernels.compress_kv.cases import inputs

Case = tuple[str, Callable[..., Any], int, int]


def cases(rows: int, device: torch.device) -> Iterator[Case]:
    """(name, call, bytes, operations) at the bundled model's width; `rows` blocks are completed."""
    assert device.type == "cpu", "the blocks of these cases lie on the host"
    for ratio in (4, 128):
        given = inputs(ratio, ratio * rows, dim=64)
        yield f"ratio {ratio}", partial(compress_kv, **given), given["raw"].nbytes + 4 * rows * 64, 0


if __name__ == "__main__":
    main("compress_kv", cases)
