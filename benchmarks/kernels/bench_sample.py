"""Price of sample."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from timing import main, on_device

from benthic.kernels.sample import sample
from benthic.kernels.sample.cases import inputs

Case = tuple[str, Callable[..., Any], int, int]


def cases(rows: int, device: torch.device) -> Iterator[Case]:
    """(name, call, bytes, operations) at sizes of the bundled model."""
    off = {"top_k": 0, "top_p": 1, "min_p": 0}
    wishes: dict[str, dict[str, float]] = {
        "greedy": off | {"temperature": 0},
        "plain": off | {"temperature": 1},
        "top-p 0.9": off | {"temperature": 1, "top_p": 0.9},
    }
    for name, settings in wishes.items():
        given = on_device(inputs(rows, vocab_size=4096, **settings), device)
        yield name, partial(sample, **given), 4 * rows * 4096, 0


if __name__ == "__main__":
    main("sample", cases)
