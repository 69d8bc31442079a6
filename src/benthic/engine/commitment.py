"""What came out of a pass, written into its sequences.

The sequence grows by what was sampled, its computed rows become final in the cache, and it may end. A sequence that
ended while the pass was in flight is passed over: its rows wrote to memory that nobody else had yet.
"""

from typing import Protocol

from benthic.cache.manager import CacheManager
from benthic.engine.plan import SampledToken, ScheduledChunk, StepPlan, StepResult
from benthic.engine.request import ErrorKind, Event, FinalOutput, FinishReason, RowExtras
from benthic.engine.sequence import ExtrasBuffer, Phase, Sequence


class Finish(Protocol):
    """Ends a sequence, as `Scheduler.finish` does."""

    def __call__(
        self, sequence: Sequence, reason: FinishReason, error: str | None = None, error_kind: ErrorKind = "engine"
    ) -> FinalOutput: ...


def commit_result(plan: StepPlan, result: StepResult, cache: CacheManager, finish: Finish) -> list[Event]:
    """Commits a pass.

    Args:
        finish: ends a sequence that had its last token.

    Returns:
        A TokenEvent for each new token and a FinalOutput for each sequence that ended, in the plan's order.
    """
    events: list[Event] = []
    groups = iter(result.sampled)
    version = result.weight_version
    for place, chunk in enumerate(plan.chunks):
        sequence = chunk.sequence
        group = next(groups) if chunk.samples else ()
        sequence.num_in_flight -= 1
        if sequence.phase is Phase.DONE:
            continue
        if result.extras or result.prompt_logprobs:
            _keep_what_rows_gave(chunk, result, place)
        if group and group[-1].error is not None:
            # Not committed: what gave numbers that are not finite must not be shared with others.
            _append_run(events, chunk, group[:-1], version)
            events.append(finish(sequence, "error", group[-1].error, group[-1].error_kind))
            continue
        if len(group) == 1 and not chunk.drafts:
            token = group[0]
            events.append(sequence.append(token.token_id, token.logprobs, version))
            computed_len = chunk.start + chunk.length
        else:
            computed_len = chunk.start + _append_run(events, chunk, group, version)
        _settle(sequence, computed_len)
        extras = sequence.extras
        assert sequence.row is not None
        cache.commit(sequence.row, computed_len, sequence.tokens, None if extras is None else extras.page)
        if group or computed_len == len(sequence.tokens):
            reason = sequence.natural_end()
            if reason is not None:
                events.append(finish(sequence, reason))
    assert next(groups, None) is None, "more was sampled than planned"
    return events


def _append_run(events: list[Event], chunk: ScheduledChunk, group: tuple[SampledToken, ...], version: int) -> int:
    """Appends tokens up to the first that ends the sequence; how many of the chunk's rows are final with them."""
    if not group:
        return chunk.length
    sequence, num_drafts = chunk.sequence, len(chunk.drafts)
    assert len(group) <= 1 + num_drafts, (len(group), num_drafts)
    num_kept = 0
    sequence.drafted += num_drafts
    for place, token in enumerate(group):
        sequence.accepted += place < len(group) - 1
        events.append(sequence.append(token.token_id, token.logprobs, version))
        num_kept += 1
        if sequence.natural_end() is not None:
            break
    return chunk.length - num_drafts - 1 + num_kept


def _settle(sequence: Sequence, computed_len: int) -> None:
    """Lengths after a commit: what was an upper bound becomes exact where nothing else is in flight."""
    sequence.computed_len = computed_len
    if sequence.num_in_flight == 0:
        sequence.scheduled_len = computed_len
        sequence.known_len = len(sequence.tokens)
    assert computed_len <= sequence.scheduled_len <= sequence.known_len, sequence.request.request_id


def _keep_what_rows_gave(chunk: ScheduledChunk, result: StepResult, place: int) -> None:
    sequence = chunk.sequence
    if result.extras and sequence.extras is not None:
        extras = result.extras[place]
        assert extras is not None, sequence.request.request_id
        _write_exact(sequence.extras, chunk, extras)
    if result.prompt_logprobs and result.prompt_logprobs[place]:
        # Token start + 1 is the first of them. After a retraction some are here already.
        known = len(sequence.prompt_logprobs) - chunk.start
        assert known >= 0, (known, chunk.start)
        sequence.prompt_logprobs += result.prompt_logprobs[place][known:]


def _write_exact(buffer: ExtrasBuffer, chunk: ScheduledChunk, extras: RowExtras) -> None:
    """Those of a replay's rows stay out: they chose without their window, and came with the cached pages already."""
    row = chunk.sequence.row
    assert row is not None, chunk.sequence.request.request_id
    num_replayed = max(0, row.whole_from - chunk.start)
    if num_replayed < chunk.length:
        buffer.write(chunk.start + num_replayed, extras.after(num_replayed))
