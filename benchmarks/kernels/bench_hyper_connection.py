"""Price of hyper_connection: before, after, head, Sinkhorn alone."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from timing import main, on_device

from benthic.kernels.hyper_connection import hyper_head, hyper_post, hyper_pre, sinkhorn
from benthic.kernels.hyper_connection.cases import head_inputs, post_inputs, pre_inputs, sinkhorn_inputs
from benthic.kernels.linear import by_columns

Case = tuple[str, Callable[..., Any], int, int]


def cases(rows: int, device: torch.device) -> Iterator[Case]:
    """(name, call, bytes, operations) at sizes of the bundled model."""
    pre, head = on_device(pre_inputs(rows, size=256), device), on_device(head_inputs(rows, size=256), device)
    pre["fn"], head["fn"] = by_columns(pre["fn"], 4), by_columns(head["fn"], 4)
    yield "pre", partial(hyper_pre, **pre), 20 * rows * 256, 48 * rows * 1024
    yield "post", partial(hyper_post, **on_device(post_inputs(rows, size=256), device)), 36 * rows * 256, 0
    yield "head", partial(hyper_head, **head), 20 * rows * 256, 8 * rows * 1024
    yield "sinkhorn", partial(sinkhorn, **on_device(sinkhorn_inputs(rows), device)), 128 * rows, 0


if __name__ == "__main__":
    main("hyper_connection", cases)
