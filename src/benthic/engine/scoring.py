"""Logits and log-probabilities of given tokens, on the packed path that training uses.

The engine reaches the same numbers through the cache, token by token: they are equal bit for bit.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from benthic.engine.request import TokenLogprobs
from benthic.kernels.cross_entropy import token_logprobs
from benthic.models.packed import PackedContext
from benthic.models.rows import build_rows
from benthic.models.transformer import Transformer

ROWS_PER_BLOCK = 1024
"""Rows whose logits exist together."""


@torch.inference_mode()
def packed_logits(model: Transformer, ids: Sequence[int]) -> Tensor:
    """Next-token logits after each prefix of `ids`: float32 [len, V] on the CPU."""
    return torch.cat([block.cpu() for _, block in _logit_blocks(model, ids)])


@torch.inference_mode()
def packed_logprobs(model: Transformer, ids: Sequence[int]) -> Tensor:
    """log p(ids[t + 1] | ids[0 .. t]): float32 [len - 1] on the CPU."""
    targets = torch.tensor([*ids[1:], 0], device=model.device)
    parts = [token_logprobs(block, targets[start : start + len(block)]) for start, block in _logit_blocks(model, ids)]
    return torch.cat(parts)[:-1].cpu()


@torch.inference_mode()
def prompt_logprobs(model: Transformer, ids: Sequence[int], num_top: int) -> list[TokenLogprobs | None]:
    """Log-probabilities of every token with the `num_top` most likely at its place; None for the first token."""
    found: list[TokenLogprobs | None] = [None]
    for start, block in _logit_blocks(model, ids):
        targets = ids[start + 1 : start + 1 + len(block)]
        found += top_logprobs(block[: len(targets)], targets, num_top)
    return found


def top_logprobs(logits: Tensor, chosen: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """Log-probabilities of one chosen token a row and of the `num_top` most likely; equals in the order of their ids.

    Args:
        logits: float32 [R, V].
        chosen: R token ids.
    """
    own = token_logprobs(logits, torch.tensor(chosen, dtype=torch.int64, device=logits.device)).tolist()
    if num_top == 0:
        return [TokenLogprobs(value, ()) for value in own]
    best = _most_likely(logits, num_top)
    values = torch.stack([token_logprobs(logits, column) for column in best.unbind(1)], dim=1)
    pairs = zip(own, best.tolist(), values.tolist(), strict=True)
    return [TokenLogprobs(value, tuple(zip(ids, tops, strict=True))) for value, ids, tops in pairs]


def _most_likely(logits: Tensor, count: int) -> Tensor:
    """Ids of the largest logits of each row, int64 [R, count], largest first, equals by lower id."""
    count = min(count, logits.shape[1])
    best = torch.topk(logits, count)
    if bool(((logits >= best.values[:, -1:]).sum(-1) > count).any()):
        # Several tokens share the last place, and topk takes any of them.
        return torch.sort(logits, dim=-1, descending=True, stable=True).indices[:, :count]
    by_id = best.indices.sort(dim=-1).values
    order = torch.sort(logits.gather(1, by_id), dim=-1, descending=True, stable=True).indices
    return by_id.gather(1, order)


def _logit_blocks(model: Transformer, ids: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
    """(first row, logits [rows, V]) in blocks; each product has at least `min_rows` rows."""
    rows = build_rows([(0, 0, ids)], model.min_rows, model.device)
    hidden = model.hidden(model(rows, PackedContext(model.config, rows)))
    for start in range(0, rows.num_rows, ROWS_PER_BLOCK):
        end = min(start + ROWS_PER_BLOCK, rows.num_rows)
        first = max(0, min(start, end - model.min_rows))
        yield start, model.logits(hidden[first : max(end, model.min_rows)])[start - first : end - first]
