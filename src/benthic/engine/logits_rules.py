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
"""

from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benthic.engine.host_copy import to_device
from benthic.engine.sequence import Sequence
from benthic.engine.token_counts import TokenCounts


class SampledRow(NamedTuple):
    """One row of logits and the token that is to be drawn from it.

    `position` is the one that the token will have: of the tokens before it, the sequence holds the first ones and
    `drafted` the rest. Only a row whose rules need no history may be ahead of both (a token is still in flight).
    """

    sequence: Sequence
    position: int
    drafted: tuple[int, ...] = ()

    @property
    def num_generated(self) -> int:
        """Tokens generated before this one."""
        return self.position - self.sequence.prompt_len

    def generated(self) -> list[int]:
        """The tokens that were generated before this one."""
        sequence = self.sequence
        found = [*sequence.tokens[sequence.prompt_len :], *self.drafted]
        assert len(found) == self.num_generated, (len(found), self.num_generated)
        return found


def apply_rules(logits: Tensor, rows: Seq[SampledRow]) -> Tensor:
    """The logits to sample from: `logits` itself where no row has a rule, else a changed copy.

    Args:
        logits: float32 [N, V], finite.
        rows: one a row, in order.
    """
    ruled = [(place, row) for place, row in enumerate(rows) if row.sequence.request.params.has_rules]
    if not ruled:
        return logits
    logits = logits.clone()
    _penalise(logits, ruled)
    _add_biases(logits, ruled)
    _forbid_stops(logits, ruled)
    _end_reasoning(logits, ruled)
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


def _forbid_stops(logits: Tensor, ruled: _Ruled) -> None:
    found = [
        (place, token)
        for place, row in ruled
        if row.num_generated < row.sequence.request.params.min_tokens
        for token in row.sequence.stop_ids
    ]
    if found:
        logits[_index(logits, *np.array(found).T)] = float("-inf")


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
