"""An engine in the caller's thread: one caller drives it, and any thread may pause or change it between two steps."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from benthic.engine.call_checks import check_checksum, read_weight_source
from benthic.engine.engine import Engine, PauseMode
from benthic.engine.request import Event, FinalOutput
from benthic.engine.stats import EngineStats
from benthic.engine.weights import WeightSource
from benthic.errors import RequestError
from benthic.llm.answers import OpenAnswer, OpenPrompt

_PAUSED_STEP_S = 0.02
"""While it is paused a step computes nothing; it ends requests that are late or cancelled."""
_T = TypeVar("_T")


class EngineDriver:
    """Steps an engine for its callers.

    Args:
        engine: used by nobody else.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._between_steps = threading.Condition()
        self._held: list[Event] = []
        """What control calls brought, for whoever drives."""
        self._is_closed = False
        self._paused_by: int | None = None
        """The thread that paused."""

    def run(self, prompts: Sequence[OpenPrompt]) -> Iterator[str]:
        """Runs prompts to their ends and yields text as it comes. Whatever interrupts it, the engine is left empty.

        Raises:
            RequestError: the calling thread has paused the engine, so that nobody would go on; or the engine is closed.
        """
        todo = iter([answer for prompt in prompts for answer in prompt.answers])
        live: dict[str, OpenAnswer] = {}
        try:
            while True:
                for event in self._step(todo, live):
                    answer = live[event.request_id]
                    was_stopped = answer.stop_string is not None
                    yield answer.take(event)
                    if isinstance(event, FinalOutput):
                        del live[event.request_id]
                    elif answer.stop_string is not None and not was_stopped:
                        with self._between_steps:
                            self.engine.cancel(event.request_id, "stop")
                if not live:
                    return
        finally:
            if live:
                with self._between_steps:
                    self.engine.fail_all("interrupted")
                    self._held.clear()

    def between_steps(self, work: Callable[[], _T]) -> _T:
        """What `work` returns, while no step runs."""
        with self._between_steps:
            return work()

    def pause(self, mode: PauseMode) -> None:
        """See `Engine.pause`."""
        with self._between_steps:
            self._held += self.engine.pause(mode)
            self._paused_by = threading.get_ident()
            self._between_steps.notify_all()

    def resume(self) -> None:
        """See `Engine.resume`."""
        with self._between_steps:
            self.engine.resume()
            self._paused_by = None
            self._between_steps.notify_all()

    def update_weights(self, source: WeightSource, version: int | None, checksum: str | None) -> int:
        """See `Engine.update_weights`; returns the version in force."""
        source = read_weight_source(source)
        check_checksum(checksum)
        with self._between_steps:
            update = self.engine.update_weights(source, version, checksum)
            self._held += update.events
            return update.version

    def flush(self) -> None:
        """See `Engine.flush`."""
        with self._between_steps:
            self.engine.flush()

    def stats(self) -> EngineStats:
        """See `Engine.stats`."""
        with self._between_steps:
            return self.engine.stats()

    def close(self) -> None:
        """Ends the engine's thread, if it has one. Who runs prompts now gets an error."""
        with self._between_steps:
            self._is_closed = True
            self.engine.close()
            self._between_steps.notify_all()

    def _step(self, todo: Iterator[OpenAnswer], live: dict[str, OpenAnswer]) -> list[Event]:
        with self._between_steps:
            if self._paused_by is not None and not self._held:
                if self._paused_by == threading.get_ident():
                    raise RequestError(
                        "the LLM was paused by this thread, which now waits for an answer; call resume() first, or ask "
                        "from another thread"
                    )
                self._between_steps.wait(_PAUSED_STEP_S)
            if self._is_closed:
                raise RequestError("this LLM was closed before the answer was complete; close it afterwards")
            # Only what can run soon is queued, so that any number of prompts may be given.
            for answer in itertools.islice(todo, max(0, 2 * self.engine.config.max_num_seqs - len(live))):
                self.engine.add(answer.request)
                live[answer.request.request_id] = answer
            held, self._held = self._held, []
            return held + self.engine.step() if live else []
