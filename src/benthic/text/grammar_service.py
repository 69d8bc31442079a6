"""Makes grammars ready for the engine, off the caller's thread: each is tried once in a child, and the outcome kept.

    service = GrammarService(tokenizer.path, timeout_s=5.0)
    ready = service.compile(spec)            # waits; BadSchema says why not
    future = service.submit(spec)            # does not wait; to be cancelled when nobody wants it any more
    service.close()

The child is started with the first grammar. One grammar is tried at a time, in the order of arrival; one that takes too
long is refused, and so is the same one sent again, at once.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from benthic.errors import BadSchema, BenthicError, CapacityError
from benthic.text.grammar import GrammarSpec, ReadyGrammar
from benthic.text.grammar_trial import GrammarTrial
from benthic.text.grammar_vocabulary import GrammarVocabulary

logger = logging.getLogger(__name__)

MAX_WAITING = 256
"""Grammars that may wait; more are refused until some are done."""


class _Job(NamedTuple):
    spec: GrammarSpec
    future: "Future[ReadyGrammar]"


class GrammarService:
    """Compiles for one vocabulary. `submit` and `compile` may be called from any thread.

    Args:
        path: the tokenizer.json.
        timeout_s: seconds that one grammar may take.
        cache_size: outcomes that are remembered.
        observe: told the seconds that each trial took.
    """

    def __init__(
        self,
        path: Path,
        *,
        timeout_s: float = 5.0,
        cache_size: int = 1024,
        observe: Callable[[float], None] | None = None,
    ) -> None:
        self._vocabulary = GrammarVocabulary(path)
        self._trial = GrammarTrial(path, timeout_s)
        self._cache_size = cache_size
        self._observe = observe
        self._outcomes: OrderedDict[tuple[str, str], str] = OrderedDict()
        """Why a grammar was refused, empty if it was not; by key and prefix, the latest last."""
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._num_waiting = 0
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @property
    def child_pid(self) -> int | None:
        """Process id of the child, if there is one."""
        return self._trial.pid

    def compile(self, spec: GrammarSpec) -> ReadyGrammar:
        """The grammar, once it has been tried.

        Raises:
            BadSchema: it does not compile, or not in time; `param` is the spec's.
            CapacityError: too many wait.
            ConfigError: the library is not installed.
        """
        return self.submit(spec).result()

    def submit(self, spec: GrammarSpec) -> "Future[ReadyGrammar]":
        """The same without waiting; what is known already is there at once.

        Raises:
            CapacityError: too many wait, or the service is closed.
        """
        future: Future[ReadyGrammar] = Future()
        with self._lock:
            reason = self._known(spec)
            if reason is None:
                self._enqueue(_Job(spec, future))
                return future
        future.set_running_or_notify_cancel()
        self._settle(_Job(spec, future), reason)
        return future

    def close(self) -> None:
        """Ends the child and the thread; what waits is refused. Closing twice is fine."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if thread is not None:
            self._jobs.put(None)
            thread.join()

    def _enqueue(self, job: _Job) -> None:
        if self._is_closed:
            raise CapacityError("grammars are not compiled any more: the server is closing")
        if self._num_waiting >= MAX_WAITING:
            raise CapacityError(f"{self._num_waiting} grammars wait to be compiled; try again shortly")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="benthic-grammars", daemon=True)
            self._thread.start()
        self._num_waiting += 1
        self._jobs.put(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._lock:
                self._num_waiting -= 1
                is_closed = self._is_closed
            if not job.future.set_running_or_notify_cancel():  # nobody wants it any more
                continue
            try:
                self._settle(job, "the server is closing" if is_closed else self._outcome(job.spec))
            except BenthicError as error:
                job.future.set_exception(error)
            except Exception as error:  # noqa: BLE001 - the border: those behind it would wait for ever
                logger.exception("a grammar of %s could not be tried", job.spec.param)
                self._trial.close()
                job.future.set_exception(CapacityError(f"grammars cannot be compiled now: {error}"))
        self._trial.close()

    def _outcome(self, spec: GrammarSpec) -> str:
        with self._lock:
            known = self._known(spec)
        if known is not None:
            return known
        self._trial.start()
        started = time.monotonic()
        reason = self._trial.check(spec.payload, spec.prefix)
        if self._observe is not None:
            self._observe(time.monotonic() - started)
        with self._lock:
            self._outcomes[self._place(spec)] = reason
            while len(self._outcomes) > self._cache_size:
                self._outcomes.popitem(last=False)
        return reason

    def _known(self, spec: GrammarSpec) -> str | None:
        reason = self._outcomes.get(self._place(spec))
        if reason is not None:
            self._outcomes.move_to_end(self._place(spec))
        return reason

    def _settle(self, job: _Job, reason: str) -> None:
        spec = job.spec
        if reason:
            job.future.set_exception(BadSchema(f"{spec.param} cannot be used: {reason}", param=spec.param))
            return
        key = spec.key(self._vocabulary.digest)
        job.future.set_result(ReadyGrammar(key, spec.payload, spec.starts_after, spec.prefix))

    def _place(self, spec: GrammarSpec) -> tuple[str, str]:
        return spec.key(self._vocabulary.digest), spec.prefix
