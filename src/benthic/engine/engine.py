"""The engine: requests in tokens go in, `step` moves all of them on by one pass and returns what came out.

`step` is the only loop body of the system: plan, launch, and take in the pass launched before. With `overlap_steps` 1
that pass was running while this one was planned; with 0 it is the pass just launched. An engine belongs to one thread.
Every request that `add` accepts gets exactly one FinalOutput from `step` or `fail_all`.

Pausing, new weights and flushing happen at a drained boundary: no pass is in flight.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Literal

from benthic.cache.budget import Budget
from benthic.cache.geometry import CacheCapacity
from benthic.cache.memory import return_free_memory
from benthic.engine.assembly import (
    AbsentRunner,
    EngineParts,
    assemble,
    cache_geometry,
    fingerprint,
    make_drafter,
    make_runner,
)
from benthic.engine.call_checks import check_pause_mode, check_weight_version
from benthic.engine.config import EngineConfig
from benthic.engine.counters import Counters
from benthic.engine.cpu import hold_threads
from benthic.engine.drafting import Drafter
from benthic.engine.extras import ExtrasBuffer
from benthic.engine.grammar import MaskSource
from benthic.engine.grammar_reading import GrammarReading
from benthic.engine.graphs import Graphs
from benthic.engine.memory_plan import plan_memory
from benthic.engine.pending import PendingStep
from benthic.engine.plan import StepPlan
from benthic.engine.request import Event, FinalOutput, FinishReason, Request
from benthic.engine.request_checks import RequestChecks
from benthic.engine.sequence import Phase, Sequence
from benthic.engine.stats import EngineStats
from benthic.engine.weight_reading import WeightValues, read_weight
from benthic.engine.weight_versions import WeightUpdate, WeightVersions
from benthic.engine.weights import WeightSource, install_weights, stage_weights, weights_checksum
from benthic.errors import CapacityError, RequestError, WeightsLostError
from benthic.models.transformer import Transformer

PauseMode = Literal["abort", "keep", "retract"]
_READING_S = 0.005
"""A step that finds nothing else to do waits so long for a grammar; commands wait with it."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A launched pass; `depths` are the drafts wanted after it."""

    plan: StepPlan
    depths: tuple[int, ...]
    pending: PendingStep


class Engine:
    """Continuous batching over one model.

    Args:
        model: frozen, in its final place and dtype. On CPU the engine sets torch's thread count to
            `config.num_threads`.
        config: budgets.
        drafter: instead of the one that `config.drafter` names.
        capacity: of the cache, instead of what memory allows.
        measures_pass: run the largest pass to see what it takes, also where memory is plenty.
        graphs: records decoding passes, instead of what the device has.
        masks: reads the grammars of requests; None: requests with one are refused.
        clock: seconds; deadlines and reports follow it.

    Raises:
        ConfigError: the budgets do not hold one full context of the model, or a setting does not suit it.
    """

    def __init__(
        self,
        model: Transformer,
        config: EngineConfig | None = None,
        *,
        drafter: Drafter | None = None,
        capacity: CacheCapacity | None = None,
        measures_pass: bool = False,
        graphs: Graphs | None = None,
        masks: MaskSource | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config or EngineConfig()
        self._model, self._graphs, self._clock = model, graphs, clock
        self._hold_threads()
        self._drafter = make_drafter(model, self.config) if drafter is None else drafter
        self.budget: Budget | None = None
        """Where memory goes, as far as it was planned."""
        if capacity is None:
            geometry = cache_geometry(model, self.config)
            self.budget = plan_memory(model, geometry, self.config, measures_pass=measures_pass)
            capacity = self.budget.capacity
        self._capacity = capacity
        self.max_model_len = capacity.max_len
        self._checks = RequestChecks(model.config, self.config, self.max_model_len, reads_grammars=masks is not None)
        vocab_size, end_id = model.config.vocab_size, model.config.eos_token_id
        self._grammars = GrammarReading(masks, end_id=end_id, vocab_size=vocab_size)
        self._fingerprint = fingerprint(model, self.config)
        self._versions = WeightVersions(0)
        self._counters = Counters()
        self._in_flight: deque[InFlight] = deque()
        self._cancelled: list[tuple[str, FinishReason]] = []
        self._held: list[Event] = []
        self._live: dict[str, Sequence] = {}
        self._is_paused = False
        self._is_sound = True
        self._parts = self._assemble()

    # Requests

    def check(self, request: Request) -> None:
        """Whether `add` would take the request, were there room; see `RequestChecks.check`."""
        self._checks.check(request)

    def check_ids(self, ids: Seq[int], param: str) -> None:
        """Refuses ids that the model has no embedding for; see `RequestChecks.check_ids`."""
        self._checks.check_ids(ids, param)

    def add(self, request: Request) -> None:
        """Queues a request.

        Raises:
            RequestError: see `check`; or its id is that of a live request.
            CapacityError: too many requests wait.
        """
        self.check(request)
        if request.request_id in self._live:
            raise RequestError(f"request_id {request.request_id!r} is in use; each live request needs its own")
        scheduler = self._parts.scheduler
        num_waiting = scheduler.num_waiting + len(self._grammars)
        if num_waiting >= self.config.max_num_waiting:
            raise CapacityError(f"{num_waiting} requests wait, the most allowed; try again later")
        sequence = self._sequence(request)
        self._live[request.request_id] = sequence
        self._counters.added(sequence)
        if self._grammars.is_ready(sequence):
            scheduler.add(sequence)

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        """Ends a request before the next pass; `reason` is what its FinalOutput says. Unknown ids are ignored."""
        if request_id in self._live:
            self._cancelled.append((request_id, reason))

    def has_work(self) -> bool:
        """Whether `step` would return or compute something; a paused engine computes nothing."""
        has_news = self._held or self._cancelled or self._in_flight or (self._live and not self._is_paused)
        return bool(has_news) or self.idle_s() <= 0

    def idle_s(self) -> float:
        """Seconds until a request times out, which a paused engine has to tell as well; infinite if none will."""
        return min(self._parts.scheduler.next_deadline_s, self._grammars.next_deadline_s) - self._clock()

    @property
    def is_sound(self) -> bool:
        """Whether the books are whole. If not, `fail_all` makes them so, at the price of all requests."""
        return self._is_sound

    def step(self) -> list[Event]:
        """Ends cancelled and late requests, then plans and launches a pass and takes in the one before."""
        self._is_sound = False
        now_s = self._clock()
        events = self._dismiss() + self._queue_read() + self._time_out(now_s)
        if not self._is_paused:
            self._hold_threads()
            plan = self._parts.scheduler.plan(now_s)
            if plan.chunks:
                self._launch(plan)
            if self._in_flight and (not plan.chunks or len(self._in_flight) > self._parts.overlap_steps):
                events += self._take_in()
            elif not plan.chunks and not events:
                self._grammars.wait(_READING_S)
        if self.config.debug_checks:
            self.check_laws()
        held = self._hand_out()
        self._is_sound = True
        return held + self._ended(events)

    def fail_all(self, error: str) -> list[Event]:
        """Ends every live request with `error`, whatever state a failed or interrupted step left."""
        if not self._is_sound:
            return self._start_afresh(error)
        events = self._drain()
        finals = [self._finish(sequence, "error", error) for sequence in list(self._live.values())]
        events += self._held + self._ended(list(finals))
        self._held = []
        return events

    # Control

    def pause(self, mode: PauseMode = "keep") -> list[Event]:
        """Stops computing until `resume`; returns what the pass in flight brought.

        Args:
            mode: "keep" leaves running requests where they are, "retract" makes them give back their memory and wait,
                "abort" ends all live requests as cancelled.

        Raises:
            RequestError: `mode` is none of these.
        """
        check_pause_mode(mode)
        self._held += self._drain()
        self._is_paused = True
        self._is_sound = False
        scheduler = self._parts.scheduler
        if mode == "retract":
            scheduler.retract_all()
        elif mode == "abort":
            finals = [self._finish(sequence, "cancelled") for sequence in list(self._live.values())]
            self._held += self._ended(list(finals))
        self._is_sound = True
        return self._hand_out()

    def resume(self) -> None:
        """Ends a pause.

        Raises:
            RequestError: the cache's memory was given back.
        """
        if self.has_released:
            raise RequestError("the cache's memory was given back; take it again (resume_memory_occupation) first")
        self._is_paused = False

    def update_weights(
        self, source: WeightSource, version: int | None = None, checksum: str | None = None
    ) -> WeightUpdate:
        """Replaces the weights, all or none. Running requests keep their tokens and compute them anew.

        Args:
            source: a state dict of the model, a file of `write_weights`, or a checkpoint folder.
            version: stamped on every later token; None: one more than any so far. Versions go forward, and back only
                to the very weights that had that version.
            checksum: `weights_checksum` of what the sender sent.

        Raises:
            CheckpointError: the weights are not the model's or not what was sent; nothing has changed.
            RequestError: `version` is no version, or stood for other weights; nothing has changed.
            WeightsLostError: the new weights could not be put in place, nor the old ones again; no request may go on.
        """
        check_weight_version(version)
        staged = stage_weights(self._model, source, checksum)
        version = self._versions.choose(version, staged.checksum, self.weights_checksum)
        self._held += self._drain()  # kept there until it can be returned
        parts = self._parts
        self._is_sound = False
        parts.scheduler.retract_all()
        # Whatever comes of it, weights will lie elsewhere than they do now.
        parts.runner.weights_changed()
        try:
            install_weights(self._model, staged)
        except WeightsLostError:
            raise
        except BaseException:
            self._is_sound = True  # the old weights are back, and the requests will be computed anew
            raise
        parts.cache.flush()
        self._versions.installed(version, staged.checksum)
        parts.scheduler.namespace = self._namespace
        self._is_sound = True
        return WeightUpdate(version, staged.checksum, self._hand_out())

    def know_versions(self, known: Iterable[tuple[int, str]]) -> None:
        """Versions of weights, with their checksums, that an engine has had of which this one takes the place."""
        self._versions = WeightVersions(self._versions.current, known)

    def flush(self) -> None:
        """Forgets every cached prefix that no live request holds."""
        self._held += self._drain()
        self._parts.cache.flush()

    @property
    def has_released(self) -> bool:
        """Whether the cache's memory was given back."""
        return isinstance(self._parts.runner, AbsentRunner)

    def release_memory(self) -> None:
        """Gives back the memory of the cache's pools, for a trainer on the same device; running requests wait.

        Raises:
            RequestError: the engine is not paused.
        """
        if not self._is_paused:
            raise RequestError("the engine computes; pause it (pause_generation) before its memory is given back")
        parts = self._parts
        self._is_sound = False
        parts.scheduler.retract_all()
        parts.cache.flush()
        parts.cache.take_work()  # of ids that mean nothing any more
        parts.runner.weights_changed()  # what was captured holds memory too
        parts.runner.close()
        self._parts = replace(parts, runner=AbsentRunner())
        del parts
        return_free_memory(self._model.device)
        self._is_sound = True

    def take_memory(self) -> None:
        """Takes the memory again that `release_memory` gave back, and captures again what can be captured."""
        if not self.has_released:
            return
        cache = self._parts.cache
        runner = make_runner(self._model, self.config, self._capacity, self._drafter, cache, self._graphs)
        self._parts = replace(self._parts, runner=runner)
        self._hold_threads()
        runner.warm_up(lambda text: None)

    def weights_checksum(self) -> str:
        """`weights.weights_checksum` of the weights in force."""
        return weights_checksum(self._model.state_dict())

    def read_weight(self, name: str, max_values: int) -> WeightValues:
        """The first values of one tensor, row by row.

        Raises:
            RequestError: the model has no such tensor.
        """
        return read_weight(self._model.state_dict(), name, max_values)

    def close(self) -> None:
        """Waits for what is in flight; the engine is not to be used any more."""
        self._grammars.close()
        self._parts.runner.close()

    @property
    def overlap_steps(self) -> int:
        """Passes in flight while the next is planned."""
        return self._parts.overlap_steps

    def warm_up(self, say: Callable[[str], None]) -> None:
        """Captures what can be captured, so that no request waits for it; `say` is told what is being done."""
        self._hold_threads()
        self._parts.runner.warm_up(say)

    # Looking in

    def stats(self) -> EngineStats:
        """Figures of this moment."""
        parts, version = self._parts, self._versions.current
        figures = self._counters.stats(parts.scheduler, len(self._grammars), parts.cache.stats(), version)
        return replace(figures, is_paused=self._is_paused)

    def check_laws(self) -> None:
        """Asserts the conservation of pages, windows and rows. Slow."""
        self._parts.cache.check()
        if not self._live and not self._in_flight:
            stats = self._parts.cache.stats()
            assert stats.num_rows == 0, f"{stats.num_rows} rows are held and nobody lives"
            assert stats.pages.private == stats.windows.private == 0, stats

    def describe(self) -> str:
        """Queues, pools and passes in flight, for people; may be called from another thread while a step hangs."""
        passes = [
            f"pass {entry.plan.step}: {entry.plan.num_rows} rows of {len(entry.plan.chunks)} requests"
            for entry in self._in_flight
        ]
        states = [
            f"{name}: {s.phase}, {s.computed_len} of {s.total_len} tokens computed, {s.num_in_flight} passes in flight"
            for name, s in list(self._live.items())[:100]
        ]
        return "\n".join([str(self.stats()), *passes, *states])

    # The parts of a step

    def _launch(self, plan: StepPlan) -> None:
        parts = self._parts
        depths = parts.speculation.depths(plan, parts.cache)
        parts.scheduler.launched(plan)
        pending = parts.runner.launch(plan, parts.cache.take_work(), depths)
        self._in_flight.append(InFlight(plan, depths, pending))

    def _take_in(self) -> list[Event]:
        """Commits the oldest pass in flight, waiting for it."""
        entry = self._in_flight.popleft()
        result = replace(entry.pending.result(), weight_version=self._versions.current)
        events = self._parts.scheduler.committed(entry.plan, result)
        self._parts.speculation.take(entry.plan, entry.depths, result)
        self._counters.took_in(entry.plan, result)
        return events

    def _drain(self) -> list[Event]:
        self._is_sound = False
        events = self._dismiss()
        while self._in_flight:
            events += self._take_in()
        self._is_sound = True
        return self._ended(events)

    def _hand_out(self) -> list[Event]:
        held, self._held = self._held, []
        return held

    def _dismiss(self) -> list[Event]:
        cancelled, self._cancelled = dict(self._cancelled), []
        return [self._finish(self._live[name], reason) for name, reason in cancelled.items() if name in self._live]

    def _queue_read(self) -> list[Event]:
        """Queues sequences that waited for their grammars, or ends them where these cannot be read."""
        events: list[Event] = []
        for sequence, error, kind in self._grammars.take():
            if error is None:
                self._parts.scheduler.add(sequence)
            else:
                events.append(sequence.finish("error", error, kind))
        return events

    def _time_out(self, now_s: float) -> list[Event]:
        scheduler = self._parts.scheduler
        for sequence in self._grammars.late(now_s):
            self._grammars.drop(sequence)
            scheduler.add(sequence)  # which knows how to end it
        return list(scheduler.time_out(now_s))

    def _finish(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> FinalOutput:
        """Ends a live sequence, wherever it is."""
        if self._grammars.drop(sequence):
            return sequence.finish(reason, error)
        return self._parts.scheduler.finish(sequence, reason, error)

    def _ended(self, events: list[Event]) -> list[Event]:
        """Forgets the requests that ended."""
        for event in events:
            if isinstance(event, FinalOutput):
                del self._live[event.request_id]
                self._parts.speculation.forget(event.request_id)
                self._counters.ended(event)
        return events

    def _start_afresh(self, error: str) -> list[Event]:
        """Ends all requests and makes the parts anew; the old ones may be in any state."""
        self._parts.runner.close()
        self._in_flight.clear()
        self._cancelled.clear()
        self._grammars.clear()
        events = self._held + self._ended([_failed(sequence, error) for sequence in self._live.values()])
        self._held = []
        self._counters.replaced(self._parts.scheduler)
        # The pools' memory must be free before it is taken again.
        del self._parts
        self._parts = self._assemble()
        self._is_sound = True
        return events

    def _assemble(self) -> EngineParts:
        return assemble(self._model, self.config, self._capacity, self._drafter, self._namespace, self._graphs)

    @property
    def _namespace(self) -> tuple[str, int]:
        return (self._fingerprint, self._versions.current)

    def _hold_threads(self) -> None:
        """Somebody else's torch.set_num_threads must not change a row's bits."""
        if self._model.device.type == "cpu":
            hold_threads(self.config.num_threads)

    def _sequence(self, request: Request) -> Sequence:
        arrived_s = self._clock() - request.waited_s
        timeout_s = self.config.request_timeout_s if request.timeout_s is None else request.timeout_s
        sequence = Sequence(
            request,
            self._counters.num_added,
            self._checks.limit_len(request),
            self._checks.stop_ids(request),
            is_serial=request.params.needs_history or self._parts.speculation.is_on,
            arrived_s=arrived_s,
            deadline_s=math.inf if timeout_s is None else arrived_s + timeout_s,
        )
        if self.config.keep_routes or self.config.keep_picks:
            sequence.extras = ExtrasBuffer(self.config.page_size)
        return sequence


def _failed(sequence: Sequence, error: str) -> FinalOutput:
    """The final output of a request whose step failed, also where its own end was lost with that step."""
    if sequence.phase is not Phase.DONE:
        return sequence.finish("error", error)
    return FinalOutput(
        request_id=sequence.request.request_id,
        token_ids=tuple(sequence.tokens[sequence.prompt_len :]),
        logprobs=None,
        finish_reason="error",
        error=error,
        error_kind="engine",
        prompt_len=sequence.prompt_len,
    )
