"""Log-probabilities of given tokens: of a pass's rows, and of whole texts on the packed path that training uses.

The engine reaches the numbers of the packed path through the cache, token by token: they are equal bit for bit.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from benthic.engine.host_copy import HostCopy, to_device
from benthic.engine.request import TokenLogprobs
from benthic.kernels.cross_entropy import RankedLogprobs, ranked_logprobs, token_logprobs
from benthic.models.config import ModelConfig
from benthic.models.packed import PackedContext
from benthic.models.rows import build_rows
from benthic.models.transformer import Transformer

BLOCK_BYTES = 64 << 20
"""Of logits that exist together."""


class Head(Protocol):
    """What scoring needs of a model."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def min_rows(self) -> int: ...
    def logits(self, hidden: Tensor) -> Tensor: ...


class PendingLogprobs:
    """Log-probabilities of given tokens on their way to the host."""

    def __init__(self, blocks: Sequence[RankedLogprobs]) -> None:
        self._copy = HostCopy([torch.cat(column) for column in zip(*blocks, strict=True)])

    def result(self) -> list[TokenLogprobs]:
        """One a token, in order, waiting for them."""
        columns = self._copy.wait()
        return read_ranked(RankedLogprobs(*columns)) if columns else []


def score_rows(model: Head, hidden: Tensor, targets: Sequence[int], num_top: int) -> PendingLogprobs:
    """log p(targets[r] | the prefix of row r) and the `num_top` most likely there, for rows of a pass.

    This is how the engine scores prompts: of a chunk that computes tokens start .. start + n - 1, the rows give
    tokens start + 1 .. start + n. Logits exist for BLOCK_BYTES at a time. Nothing here waits for the device.

    Args:
        hidden: [R, D], what the model's head reads; R = len(targets).
    """
    assert len(hidden) == len(targets), (len(hidden), len(targets))
    ids = to_device(torch.tensor(targets, dtype=torch.int64), hidden.device)
    blocks = _logit_blocks(model, hidden)
    return PendingLogprobs([ranked_logprobs(part, ids[start : start + len(part)], num_top) for start, part in blocks])


def read_ranked(ranked: RankedLogprobs) -> list[TokenLogprobs]:
    """One record a row, from tensors on the CPU."""
    rows = zip(ranked.chosen.tolist(), ranked.top_ids.tolist(), ranked.top.tolist(), strict=True)
    return [TokenLogprobs(own, tuple(zip(ids, values, strict=True))) for own, ids, values in rows]


@torch.inference_mode()
def packed_logits(model: Transformer, ids: Sequence[int]) -> Tensor:
    """Next-token logits after each prefix of `ids`: float32 [len, V] on the CPU."""
    return torch.cat([block.cpu() for _, block in _logit_blocks(model, _packed_hidden(model, ids))])[: len(ids)]


@torch.inference_mode()
def packed_logprobs(model: Transformer, ids: Sequence[int]) -> Tensor:
    """log p(ids[t + 1] | ids[0 .. t]): float32 [len - 1] on the CPU."""
    hidden = _packed_hidden(model, ids)[: len(ids)]
    targets = torch.tensor([*ids[1:], 0], device=model.device)
    blocks = _logit_blocks(model, hidden)
    return torch.cat([token_logprobs(part, targets[start : start + len(part)]) for start, part in blocks])[:-1].cpu()


@torch.inference_mode()
def prompt_logprobs(model: Transformer, ids: Sequence[int], num_top: int) -> list[TokenLogprobs | None]:
    """Log-probabilities of every token with the `num_top` most likely at its place; None for the first token."""
    hidden = _packed_hidden(model, ids)[: len(ids) - 1]
    return [None, *score_rows(model, hidden, ids[1:], num_top).result()]


def _packed_hidden(model: Transformer, ids: Sequence[int]) -> Tensor:
    """At least `len(ids)` rows; those beyond are padding."""
    rows = build_rows([(0, 0, ids)], model.min_rows, model.device)
    return model.hidden(model(rows, PackedContext(model.config, rows)))


def _logit_blocks(model: Head, hidden: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(first row, logits [rows, V]) in blocks; each product has at least `min_rows` rows."""
    count, least = len(hidden), model.min_rows
    if 0 < count < least:
        hidden = torch.cat([hidden, hidden[:1].expand(least - count, -1)])
    size = max(least, BLOCK_BYTES // (4 * model.config.vocab_size))
    for start in range(0, count, size):
        end = min(start + size, count)
        first = max(0, min(start, end - least))
        yield start, model.logits(hidden[first : max(end, least)])[start - first : end - first]
