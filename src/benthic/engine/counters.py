"""Counts of an engine's life, and its figures of a moment."""

from dataclasses import dataclass

from benthic.cache.work import CacheStats
from benthic.engine.plan import StepPlan, StepResult
from benthic.engine.request import FinalOutput
from benthic.engine.scheduler import Scheduler
from benthic.engine.sequence import Sequence
from benthic.engine.stats import EngineStats


@dataclass(slots=True)
class Counters:
    """Since the engine was made; they only grow."""

    num_added: int = 0
    num_finished: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_replayed_tokens: int = 0
    num_generated_tokens: int = 0
    num_steps: int = 0
    num_replayed_steps: int = 0
    was_replayed: bool = False
    num_verified: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_earlier_retractions: int = 0
    num_earlier_timeouts: int = 0

    def added(self, sequence: Sequence) -> None:
        """A request was queued."""
        self.num_added += 1
        self.num_prompt_tokens += sequence.prompt_len

    def took_in(self, plan: StepPlan, result: StepResult) -> None:
        """A pass was committed."""
        self.num_steps += 1
        self.num_replayed_steps += result.is_replayed
        self.was_replayed = result.is_replayed
        for chunk, run in zip(plan.sampling, result.sampled, strict=True):
            self.num_verified += bool(chunk.drafts)
            self.num_drafted += len(chunk.drafts)
            self.num_accepted += len(run) - 1

    def ended(self, final: FinalOutput) -> None:
        """A request ended."""
        self.num_finished += 1
        self.num_generated_tokens += len(final.token_ids)
        self.num_cached_tokens += final.cached_len
        if final.report is not None:
            self.num_replayed_tokens += final.report.replayed

    def replaced(self, scheduler: Scheduler) -> None:
        """A scheduler is given up; what it counted counts on."""
        self.num_earlier_retractions += scheduler.num_retractions
        self.num_earlier_timeouts += scheduler.num_timeouts

    def stats(self, scheduler: Scheduler, num_unread: int, cache: CacheStats, weight_version: int) -> EngineStats:
        """All figures together; `num_unread` requests wait for their grammars."""
        live = sum(sequence.num_generated for sequence in scheduler.sequences())
        pages, windows = cache.pages, cache.windows
        return EngineStats(
            num_waiting=scheduler.num_waiting + num_unread,
            num_running=scheduler.num_running,
            num_steps=self.num_steps,
            num_replayed_steps=self.num_replayed_steps,
            was_replayed=self.was_replayed,
            num_finished=self.num_finished,
            num_timeouts=self.num_earlier_timeouts + scheduler.num_timeouts,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_replayed_tokens=self.num_replayed_tokens,
            num_generated_tokens=self.num_generated_tokens + live,
            num_retractions=self.num_earlier_retractions + scheduler.num_retractions,
            num_verified=self.num_verified,
            num_drafted=self.num_drafted,
            num_accepted=self.num_accepted,
            used_pages=pages.capacity - pages.free - pages.evictable,
            cached_pages=pages.evictable,
            total_pages=pages.capacity,
            used_windows=windows.capacity - windows.free - windows.evictable,
            cached_windows=windows.evictable,
            total_windows=windows.capacity,
            num_evicted_pages=cache.counts.num_evicted_pages,
            num_evicted_windows=cache.counts.num_evicted_windows,
            weight_version=weight_version,
        )
