"""Price of token_logprobs and linear_cross_entropy."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from timing import main, on_device

from benthic.kernels.cross_entropy import linear_cross_entropy, token_logprobs
from benthic.kernels.cross_entropy.cases import inputs, loss_inputs

Case = tuple[str, Callable[..., Any], int, int]


def cases(rows: int, device: torch.device) -> Iterator[Case]:
    """(name, call, bytes, operations) at sizes of the bundled model."""
    given = on_device(inputs(rows, vocab_size=4096), device)
    yield "logprobs of 4096", partial(token_logprobs, **given), 4 * rows * 4096, 0
    loss = on_device(loss_inputs(rows, vocab_size=4096, width=256), device)
    yield "loss, head 256", partial(linear_cross_entropy, **loss), 4 * rows * 4096, 2 * rows * 4096 * 256


if __name__ == "__main__":
    main("cross_entropy", cases)
