"""Price of top-k selection."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from timing import main

from benthic.kernels.select_topk import select_topk

Case = tuple[str, Callable[..., Any], int, int]


def cases(rows: int, device: torch.device) -> Iterator[Case]:
    """(name, call, bytes, operations): the bundled model at 4K and the released one at 64K; ties in the third."""
    for count, k, name in ((1024, 64, "smooth"), (16384, 512, "smooth"), (1024, 64, "tied")):
        scores = torch.randn(rows, count, device=device)
        scores = scores.round().relu() if name == "tied" else scores
        yield f"{k} of {count} {name}", partial(select_topk, scores, k), scores.nbytes + 4 * rows * k, 0


if __name__ == "__main__":
    main("select_topk", cases)
