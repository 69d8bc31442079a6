"""What a request's rules make of the model's logits before a token is drawn from them.

A rule looks at the position and at the tokens before it, and these are the sequence's own tokens and then the drafted
ones before the row. So a verified row is treated as if its drafts had been generated one by one, and speculation
changes no token. Rows without rules cost nothing.

In this order, c(v) being how often v was generated before the position, known(v) whether it is there or in the prompt:

    repetition   l_v = l_v / r if l_v > 0 else l_v * r     where known(v)
    penalties    l_v = l_v - (frequency * c(v) + presence)    where c(v) > 0
    bias         l_v = l_v + bias_v
    min_tokens   l_v = -inf for the stopping tokens, while fewer tokens are generated
    thinking     if `thinking_budget` tokens are generated and none is the end of the reasoning, that is the next
    grammar      l_v = -inf where the grammar has no v next; min_tokens and thinking are then its own business

Until a request's grammar begins, the end token is forbidden: the answer would be without it.
"""

from collections.abc import Sequence as Seq

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benthic.engine.constraint import RowMask, Stage
from benthic.engine.host_copy import to_device
from benthic.engine.row_masks import RowMasks, forbid
from benthic.engine.sampled_row import SampledRow
from benthic.engine.token_counts import TokenCounts


def apply_rules(logits: Tensor, rows: Seq[SampledRow], masks: RowMasks) -> Tensor:
    """The logits to sample from: `logits` itself where no row has a rule, else a changed copy.

    Args:
        logits: float32 [N, V], finite.
        rows: one a row, in order.
        masks: what `row_masks` found for them.
    """
    ruled = [(place, row) for place, row in enumerate(rows) if row.sequence.request.params.has_rules]
    if not ruled:
        return logits
    logits = logits.clone()
    _penalise(logits, ruled)
    _add_biases(logits, ruled)
    free = [(place, row) for place, row in ruled if place not in masks or masks[place].words is None]
    _forbid_stops(logits, free, masks)
    _end_reasoning(logits, free)
    forbid(logits, masks)
    return logits


_Ruled = Seq[tuple[int, SampledRow]]


def _penalise(logits: Tensor, ruled: _Ruled) -> None:
    places, tokens, factors, losses = [], [], [], []
    for place, row in ruled:
        params = row.sequence.request.params
        if params.repetition_penalty == 1.0 and params.presence_penalty == params.frequency_penalty == 0.0:
            continue
        ids, counts = _counts(row)
        places.append(np.full(len(ids), place))
        tokens.append(ids)
        factors.append(np.full(len(ids), params.repetition_penalty))
        losses.append(params.frequency_penalty * counts + params.presence_penalty * (counts > 0))
    if not places:
        return
    at = _index(logits, np.concatenate(places), np.concatenate(tokens))
    factor, loss = (_floats(logits, np.concatenate(values)) for values in (factors, losses))
    found = logits[at]
    logits[at] = torch.where(found > 0, found / factor, found * factor) - loss


def _counts(row: SampledRow) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    sequence = row.sequence
    if sequence.token_counts is None:
        looks_at_prompt = sequence.request.params.repetition_penalty != 1.0
        sequence.token_counts = TokenCounts(sequence.request.prompt_ids if looks_at_prompt else ())
    assert len(sequence.tokens) + len(row.drafted) == row.position, (len(sequence.tokens), row.position)
    return sequence.token_counts.at(sequence.tokens, sequence.prompt_len, row.drafted)


def _add_biases(logits: Tensor, ruled: _Ruled) -> None:
    found = [(place, *pair) for place, row in ruled for pair in row.sequence.request.params.logit_bias]
    if found:
        places, tokens, biases = zip(*found, strict=True)
        at = _index(logits, np.array(places), np.array(tokens))
        logits[at] += _floats(logits, np.array(biases))


def _forbid_stops(logits: Tensor, ruled: _Ruled, masks: RowMasks) -> None:
    found = [(place, token) for place, row in ruled for token in _forbidden_stops(row, masks.get(place))]
    if found:
        logits[_index(logits, *np.array(found).T)] = float("-inf")


def _forbidden_stops(row: SampledRow, mask: RowMask | None) -> frozenset[int]:
    sequence = row.sequence
    if row.num_generated < sequence.request.params.min_tokens:
        return sequence.stop_ids
    is_early = mask is not None and mask.stage is Stage.BEFORE
    return sequence.constraint.early_ids if is_early and sequence.constraint is not None else frozenset()


def _end_reasoning(logits: Tensor, ruled: _Ruled) -> None:
    found = []
    for place, row in ruled:
        params = row.sequence.request.params
        # At this one position alone: a longer reply has its end token, drawn or forced, and is free.
        if row.num_generated == params.thinking_budget and params.reasoning_end_id not in row.generated():
            found.append((place, params.reasoning_end_id))
    if found:
        places, tokens = np.array(found).T
        [where, at] = _index(logits, places, tokens)
        logits[where] = float("-inf")
        logits[where, at] = 0.0


def _index(logits: Tensor, places: NDArray[np.int64], tokens: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """(row, token) pairs on the logits' device; no pair occurs twice."""
    both = to_device(torch.from_numpy(np.stack([places, tokens]).astype(np.int64)), logits.device)
    return both[0], both[1]


def _floats(logits: Tensor, values: NDArray[np.float64]) -> Tensor:
    return to_device(torch.from_numpy(values.astype(np.float32)), logits.device)
