"""A simulated model on a device of fingerprints: a row that read or overwrote what is another's is seen."""

from benthic.cache.manager import CacheManager
from benthic.cache.work import CacheWork
from benthic.engine.plan import ScheduledChunk, StepPlan, StepResult
from benthic.engine.simulate import simulated_result, synthetic_token
from tests.cache.simulated_device import PassRow, SimulatedDevice


class FingerprintModel:
    """Device work is done when a pass is launched, rows are computed when it ends: the worst order that is allowed."""

    def __init__(self, cache: CacheManager) -> None:
        self._cache = cache
        self._device = SimulatedDevice(cache.geometry)
        self._launched: dict[int, list[PassRow]] = {}

    def launch(self, plan: StepPlan, work: CacheWork) -> None:
        self._device.apply(work)
        self._launched[plan.step] = [self._part(chunk) for chunk in plan.chunks]

    def result(self, plan: StepPlan) -> StepResult:
        for chunk, part in zip(plan.chunks, self._launched.pop(plan.step), strict=True):
            self._device.run(part, _fingerprints(chunk))
        return simulated_result(plan)

    def _part(self, chunk: ScheduledChunk) -> PassRow:
        row, tables = chunk.sequence.row, self._cache.tables
        assert row is not None
        assert (row.index, row.stored_len) == (chunk.row, chunk.stored_len)
        replayed_to = row.exact_len + self._cache.geometry.window if row.exact_len else 0
        pages, windows = tables.pages[row.index].copy(), tables.windows[row.index].copy()
        return PassRow(row.index, chunk.start, chunk.length, row.stored_len, replayed_to, pages, windows)


def _fingerprints(chunk: ScheduledChunk) -> list[int]:
    """For each known position and each of the chunk, a hash of all tokens up to it; also where a token was dropped."""
    sequence, end = chunk.sequence, chunk.start + chunk.length
    known = [*sequence.tokens[: end - len(chunk.drafts)], *chunk.drafts] if chunk.drafts else sequence.tokens.copy()
    known += [synthetic_token(sequence.seed, place) for place in range(len(known), end)]
    prints = [hash((sequence.request.cache_salt, "start"))]
    for token in known:
        prints.append(hash((prints[-1], token)))
    return prints[1:]
