"""A request's grammar as its tokens come: what may follow them, and after any drafts that may be undone.

    before --starts_after--> within --end token, or another stopping one--> after
                               `--a token that the grammar refuses--> lost

The place is a function of the tokens alone. Tokens that the sequence holds are settled; drafts are walked ahead of them
and taken back when others come, so that a row after drafts has the mask that it would have if they had been generated.
What else may forbid an ending gives way: a grammar that leaves nothing but the end gets it.
"""

from collections.abc import Sequence as Seq
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benthic.engine.grammar import Grammar, TokenMask
from benthic.engine.request import ErrorKind


class Stage(StrEnum):
    """Where a row is with regard to the grammar."""

    BEFORE = "before"
    WITHIN = "within"
    AFTER = "after"
    LOST = "lost"


class RowMask(NamedTuple):
    """What the grammar says of one row.

    `words`: int32, the tokens that may come next, at least one; None: all may, or nothing is said.
    `error`: why no token can come next, and whose fault that is.
    """

    stage: Stage
    words: NDArray[np.int32] | None = None
    error: str | None = None
    error_kind: ErrorKind = "request"


class _Step(NamedTuple):
    """A token that was walked over; `is_fed`: the mask has accepted it."""

    token: int
    stage: Stage
    is_fed: bool


class Constraint:
    """The place of one sequence in its grammar.

    Args:
        grammar: what it must spell.
        mask: at the grammar's beginning; this object's own.
        prompt_len: tokens of the sequence that come before the answer.
        stop_ids: tokens that end the sequence.
        end_id: the model's end token, which the mask admits where the grammar is complete.
        vocab_size: of the model.
    """

    def __init__(
        self,
        grammar: Grammar,
        mask: TokenMask,
        *,
        prompt_len: int,
        stop_ids: frozenset[int],
        end_id: int,
        vocab_size: int,
    ) -> None:
        self._mask, self._starts_after, self._prompt_len = mask, grammar.starts_after, prompt_len
        self._stop_ids, self._end_id, self._vocab_size = stop_ids, end_id, vocab_size
        self._own_stops, self._idle_ends = stop_ids - {end_id}, frozenset({end_id}) - stop_ids
        self._tail = np.uint32((1 << (vocab_size - 1) % 32 + 1) - 1)
        self.early_ids = stop_ids & {end_id}
        """Tokens that may not come before the grammar has begun: an answer without it would be none."""
        self._num_settled = 0
        self._settled = Stage.WITHIN if grammar.starts_after is None else Stage.BEFORE
        self._ahead: list[_Step] = []

    def at(self, tokens: Seq[int], drafted: Seq[int], *, may_stop: bool = True) -> RowMask:
        """What may follow.

        Args:
            tokens: those of the sequence, prompt included. Earlier calls saw a beginning of the same ones.
            drafted: after these; they may be others the next time.
            may_stop: whether the request's other rules let it end here.
        """
        self._settle(tokens)
        self._walk(drafted)
        stage = self._stage
        if stage is Stage.LOST:
            last = (*tokens[self._prompt_len :], *drafted)[-1]
            error = f"the grammar refuses token {last}, which its mask admitted; its reader is at fault"
            return RowMask(stage, error=error, error_kind="engine")
        if stage is not Stage.WITHIN:
            return RowMask(stage)
        words = np.zeros(-(-self._vocab_size // 32), np.int32)
        if not self._mask.fill(words):
            return RowMask(stage)
        self._mind_stops(words.view(np.uint32), may_stop=may_stop)
        if not words.any():
            position = len(tokens) + len(drafted) - self._prompt_len
            error = f"the grammar admits no token after {position} generated ones; no answer in this vocabulary fits it"
            return RowMask(stage, error=error)
        return RowMask(stage, words)

    def num_fitting(self, tokens: Seq[int], drafts: Seq[int]) -> int:
        """How many of the drafts after `tokens` the grammar has, up to one that ends the answer."""
        self._settle(tokens)
        self._walk(drafts)
        for place, step in enumerate(self._ahead):
            if step.stage in (Stage.AFTER, Stage.LOST):
                return place + (step.stage is Stage.AFTER)
        return len(self._ahead)

    def has_ended(self, tokens: Seq[int], *, is_last: bool) -> bool:
        """Whether the answer is complete without a stopping token.

        Args:
            is_last: no further token may come, as the sequence is as long as it may be.
        """
        self._settle(tokens)
        if self._end_id in self._stop_ids and not is_last:
            return False  # the end token is drawn, as nothing else is left
        if self._settled is not Stage.WITHIN:
            return self._settled is Stage.AFTER
        self._take_back(0)
        return self._mask.is_ended

    @property
    def _stage(self) -> Stage:
        return self._ahead[-1].stage if self._ahead else self._settled

    def _settle(self, tokens: Seq[int]) -> None:
        """Makes the newest tokens of the sequence final."""
        new = tokens[self._prompt_len + self._num_settled :]
        if not new:
            return
        if [step.token for step in self._ahead[: len(new)]] != list(new):
            self._walk(new)
        self._settled = self._ahead[len(new) - 1].stage
        del self._ahead[: len(new)]
        self._num_settled += len(new)

    def _walk(self, ahead: Seq[int]) -> None:
        """Stands after these tokens behind the settled ones."""
        if not ahead and not self._ahead:
            return
        common = 0
        for step, token in zip(self._ahead, ahead, strict=False):
            if step.token != token:
                break
            common += 1
        self._take_back(common)
        for token in ahead[common:]:
            self._ahead.append(self._step(token))

    def _take_back(self, keep: int) -> None:
        num_fed = sum([step.is_fed for step in self._ahead[keep:]])
        if num_fed:
            self._mask.rollback(num_fed)
        del self._ahead[keep:]

    def _step(self, token: int) -> _Step:
        stage = self._stage
        if stage is Stage.BEFORE:
            return _Step(token, Stage.WITHIN if token == self._starts_after else stage, False)
        if stage is not Stage.WITHIN:
            return _Step(token, stage, False)
        if token in self._stop_ids and token != self._end_id:
            return _Step(token, Stage.AFTER, False)
        if not self._mask.accept(token):
            return _Step(token, Stage.LOST, False)
        return _Step(token, Stage.AFTER if token == self._end_id else stage, True)

    def _mind_stops(self, bits: NDArray[np.uint32], *, may_stop: bool) -> None:
        """Admits the request's own stopping tokens where the grammar may end, and takes them out where they may not."""
        bits[-1] &= self._tail
        is_complete = int(bits[self._end_id // 32]) >> self._end_id % 32 & 1
        if is_complete:
            _set(bits, self._own_stops)
        # An end token that ends nothing is in place only where nothing else is.
        unwanted = self._idle_ends if may_stop else self._idle_ends | self._stop_ids
        if not is_complete:
            unwanted -= {self._end_id}
        if unwanted:
            before = bits.copy()
            _clear(bits, unwanted)
            if not bits.any():
                bits[:] = before


def _set(bits: NDArray[np.uint32], ids: frozenset[int]) -> None:
    for token in ids:
        bits[token // 32] |= np.uint32(1 << token % 32)


def _clear(bits: NDArray[np.uint32], ids: frozenset[int]) -> None:
    for token in ids:
        bits[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)
