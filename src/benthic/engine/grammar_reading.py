"""Grammars on their way: read in a thread of their own, so that no other request's next token waits for one.

A sequence whose grammar is not known yet waits here, before it is queued, and is not lost sight of: its deadline and
its end are looked after. The beginnings of the latest grammars are kept; the next request with one of them goes on at
once, with a fork.
"""

import logging
import math
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from benthic.engine.constraint import Constraint
from benthic.engine.grammar import Grammar, MaskSource, TokenMask
from benthic.engine.request import ErrorKind
from benthic.engine.sequence import Sequence
from benthic.errors import RequestError

MAX_KNOWN = 16
"""A large grammar takes megabytes; the source keeps further ones as it sees fit."""

logger = logging.getLogger(__name__)


class ReadSequence(NamedTuple):
    """A sequence that need not wait any more: it has its constraint, or an error says why it gets none."""

    sequence: Sequence
    error: str | None = None
    error_kind: ErrorKind = "request"


class _Unread(NamedTuple):
    sequence: Sequence
    grammar: Grammar
    mask: Future[TokenMask]


class GrammarReading:
    """Gives sequences their constraints. Belongs to the engine's thread.

    Args:
        source: reads grammars; None: no sequence has one.
        end_id: the model's end token.
        vocab_size: its vocabulary.
    """

    def __init__(self, source: MaskSource | None, *, end_id: int, vocab_size: int) -> None:
        self._source, self._end_id, self._vocab_size = source, end_id, vocab_size
        self._known: OrderedDict[tuple[str, str], TokenMask] = OrderedDict()
        self._unread: dict[str, _Unread] = {}
        self._thread: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        """Sequences that wait."""
        return len(self._unread)

    def is_ready(self, sequence: Sequence) -> bool:
        """Gives the sequence its constraint, if it needs one; False where it waits here first."""
        grammar = sequence.request.params.grammar
        if grammar is None:
            return True
        name = _name(grammar)
        if name in self._known:
            self._constrain(sequence, grammar, self._known[name])
            return True
        # Those of one grammar share its reading and go on together, in their order: forks come behind their leader.
        shared = next((entry.mask for entry in self._unread.values() if _name(entry.grammar) == name), None)
        mask = self._start(grammar) if shared is None else shared
        self._unread[sequence.request.request_id] = _Unread(sequence, grammar, mask)
        return False

    def take(self) -> Iterator[ReadSequence]:
        """Those whose grammars have been read, in the order in which they came."""
        for entry in [entry for entry in self._unread.values() if entry.mask.done()]:
            del self._unread[entry.sequence.request.request_id]
            yield self._finish_reading(entry)

    def wait(self, timeout_s: float) -> None:
        """Until another grammar has been read."""
        if self._unread:
            wait({entry.mask for entry in self._unread.values()}, timeout_s, FIRST_COMPLETED)

    def drop(self, sequence: Sequence) -> bool:
        """It has ended; whether it was here."""
        return self._unread.pop(sequence.request.request_id, None) is not None

    @property
    def next_deadline_s(self) -> float:
        """The earliest of those that wait; infinite where there is none."""
        return min((entry.sequence.deadline_s for entry in self._unread.values()), default=math.inf)

    def late(self, now_s: float) -> list[Sequence]:
        """Those whose deadline has passed."""
        return [entry.sequence for entry in self._unread.values() if entry.sequence.deadline_s <= now_s]

    def clear(self) -> None:
        """All have ended."""
        self._unread.clear()

    def close(self) -> None:
        """Reads no more; a grammar that is being read is not waited for."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _start(self, grammar: Grammar) -> Future[TokenMask]:
        assert self._source is not None, "requests with a grammar are refused where nobody reads one"
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="benthic-grammars")
        return self._thread.submit(self._source.start, grammar)

    def _finish_reading(self, entry: _Unread) -> ReadSequence:
        try:
            mask = entry.mask.result()
        except RequestError as error:
            return ReadSequence(entry.sequence, str(error))
        except Exception as error:  # noqa: BLE001 - the border: one request's grammar is not the others' trouble
            logger.exception("the grammar of request %r could not be read", entry.sequence.request.request_id)
            return ReadSequence(entry.sequence, f"{type(error).__name__}: {error}", "engine")
        name = _name(entry.grammar)
        self._known[name] = mask
        self._known.move_to_end(name)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        self._constrain(entry.sequence, entry.grammar, mask)
        return ReadSequence(entry.sequence)

    def _constrain(self, sequence: Sequence, grammar: Grammar, mask: TokenMask) -> None:
        sequence.constraint = Constraint(
            grammar,
            mask.fork(),
            prompt_len=sequence.prompt_len,
            stop_ids=sequence.stop_ids,
            end_id=self._end_id,
            vocab_size=self._vocab_size,
        )


def _name(grammar: Grammar) -> tuple[str, str]:
    return grammar.key, grammar.prefix
