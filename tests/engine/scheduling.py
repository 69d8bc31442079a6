"""Small caches, schedulers and sequences, and passes without a model."""

from typing import Any

from benthic.cache.geometry import CacheCapacity, CacheGeometry
from benthic.cache.layout import LayerCache
from benthic.cache.manager import CacheManager
from benthic.cache.retention import retention
from benthic.engine.plan import SampledToken, ScheduledChunk, StepPlan, StepResult
from benthic.engine.request import Event, Request
from benthic.engine.sampling import SamplingParams
from benthic.engine.scheduler import Scheduler
from benthic.engine.sequence import Sequence
from benthic.engine.simulate import simulated_result

PAGE, WINDOW, MAX_LEN = 16, 8, 400
LAYERS = (LayerCache(0, False, 4, 0), LayerCache(4, True, 4, 2), LayerCache(16, False, 4, 0))


def cache_of(
    pages: int = 200,
    windows: int = 100,
    rows: int = 8,
    *,
    page: int = PAGE,
    max_len: int = MAX_LEN,
    draft_len: int = 0,
    policy: str = "boundaries",
    keeps_extras: bool = False,
) -> CacheManager:
    geometry = CacheGeometry(page, WINDOW, LAYERS, len(LAYERS), draft_len)
    capacity = CacheCapacity(pages, windows, rows, max_len)
    kept = retention(policy, page_size=page, interval=4 * page)
    return CacheManager(geometry, capacity, kept, keeps_extras=keeps_extras)


def scheduler_of(cache: CacheManager, **settings: Any) -> Scheduler:
    defaults: dict[str, Any] = {
        "max_num_seqs": cache.capacity.num_rows,
        "max_batched_tokens": 64,
        "prefill_chunk": 32,
        "admission_headroom": 16,
        "aging_s": 10.0,
    }
    return Scheduler(cache, **{**defaults, **settings})


def prompt_of(number: int, length: int) -> tuple[int, ...]:
    """Prompts of different numbers share nothing."""
    return tuple(1000 * number + place for place in range(length))


def sequence_of(
    number: int,
    prompt: int | tuple[int, ...],
    max_tokens: int = 5,
    *,
    stop_ids: tuple[int, ...] = (),
    params: dict[str, Any] | None = None,
    is_serial: bool = False,
    arrived_s: float | None = None,
    deadline_s: float = float("inf"),
    **request: Any,
) -> Sequence:
    ids = prompt_of(number, prompt) if isinstance(prompt, int) else prompt
    asked = Request(
        request_id=f"r{number}",
        prompt_ids=ids,
        params=SamplingParams(max_tokens=max_tokens, seed=number, **(params or {})),
        **request,
    )
    return Sequence(
        asked,
        number,
        len(ids) + max_tokens,
        frozenset(stop_ids),
        is_serial=is_serial,
        arrived_s=float(number) / 1000 if arrived_s is None else arrived_s,
        deadline_s=deadline_s,
    )


class Driver:
    """Plans, launches and commits passes of one scheduler, `depth` of them in flight while the next is planned."""

    def __init__(self, scheduler: Scheduler, cache: CacheManager, depth: int = 0) -> None:
        self.scheduler, self.cache, self.depth = scheduler, cache, depth
        self.in_flight: list[StepPlan] = []
        self.events: list[Event] = []
        self.now_s = 0.0

    def launch(self) -> StepPlan:
        plan = self.scheduler.plan(self.now_s)
        self.cache.take_work()
        if plan.chunks:
            self.scheduler.launched(plan)
            self.in_flight.append(plan)
        self.cache.check()
        return plan

    def commit(self, result: StepResult | None = None) -> list[Event]:
        plan = self.in_flight.pop(0)
        events = self.scheduler.committed(plan, simulated_result(plan) if result is None else result)
        self.events += events
        self.cache.check()
        return events

    def step(self) -> StepPlan:
        """One turn of the engine's loop."""
        plan = self.launch()
        if self.in_flight and (len(self.in_flight) > self.depth or not plan.chunks):
            self.commit()
        return plan

    def run(self, most_steps: int = 10_000) -> list[StepPlan]:
        """Steps until nothing is live; the plans."""
        plans = []
        while self.scheduler.num_running or self.scheduler.num_waiting or self.in_flight:
            plans.append(self.step())
            assert len(plans) < most_steps, "no end"
        return plans


def driver_of(*sequences: Sequence, depth: int = 0, cache: CacheManager | None = None, **settings: Any) -> Driver:
    cache = cache or cache_of()
    scheduler = scheduler_of(cache, **settings)
    for sequence in sequences:
        scheduler.add(sequence)
    return Driver(scheduler, cache, depth)


def shape(plan: StepPlan) -> list[tuple[int, int, int, bool]]:
    """(number, start, length, samples) of each chunk."""
    return [(c.sequence.number, c.start, c.length, c.samples) for c in plan.chunks]


def numbers(plan: StepPlan) -> list[int]:
    return [chunk.sequence.number for chunk in plan.chunks]


def gives(plan: StepPlan, tokens: dict[int, tuple[int, ...]], **more: Any) -> StepResult:
    """A result in which the numbered sequences sample these tokens, and the others the simulated ones."""

    def group(chunk: ScheduledChunk) -> tuple[SampledToken, ...]:
        if chunk.sequence.number in tokens:
            return tuple(map(SampledToken, tokens[chunk.sequence.number]))
        return simulated_result(StepPlan((chunk,))).sampled[0]

    return StepResult(tuple(group(chunk) for chunk in plan.chunks if chunk.samples), **more)


def is_empty(cache: CacheManager) -> bool:
    """Whether nobody holds anything, and nothing is lost."""
    stats = cache.stats()
    cache.check()
    held = [pool.private + pool.fenced + pool.cached - pool.evictable for pool in (stats.pages, stats.windows)]
    return stats.num_rows == 0 and not any(held)
