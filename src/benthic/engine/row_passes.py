"""Passes of rows that all give a token, decoding and verifying, captured once for every bucket and then replayed.

The host sends a few numbers a row. The recorded work plans the pass from them and from the page tables, runs the
layers and the head, draws the tokens and finds out which drafts were right, and leaves everything where it always
lies. A row's bits are those of a pass of its own. Rows missing to a bucket are dummies: they read what row 0 reads, so
that no further expert is hit for them, and write nowhere.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benthic.cache.pools import CachePools
from benthic.cache.row_context import RowContext, RowTables, plan_shape
from benthic.cache.table_mirror import TableMirror
from benthic.cache.tables import PageTables
from benthic.engine.drafting.mtp import DraftingModel
from benthic.engine.extras import ExtrasCollector
from benthic.engine.graphs import Graphs, captured_or_not
from benthic.engine.plan import ScheduledChunk, StepPlan
from benthic.engine.row_buckets import RowBuckets
from benthic.engine.row_drafts import PendingDrafts, RowDrafts
from benthic.engine.sampled_row import SampledRow
from benthic.engine.serving_model import ServingModel
from benthic.kernels.pass_plan import Column, PlanBuffers, plan_rows, settle_rows
from benthic.kernels.pass_plan.layout import REAL, RELAYED
from benthic.kernels.sample import sample
from benthic.models.beside import Beside, in_line
from benthic.models.trace import Trace

_NO_DRAFT = -1


@dataclass(frozen=True, slots=True)
class StagedRows:
    """A pass on the host, ready to be sent.

    `given` int64 [bucket rows, len(Column)]; `rows`: whom the N real ones belong to. `is_drawn`: the replay draws what
    they ask for; else somebody has to draw from the logits, by rules. `length`: of the longest sequence.
    """

    plan: StepPlan
    rows: tuple[SampledRow, ...]
    given: Tensor
    bucket: tuple[int, int]
    length: int
    is_drawn: bool

    @property
    def num_rows(self) -> int:
        """Rows of the bucket, dummies included."""
        return self.bucket[0]


class RowPass(NamedTuple):
    """What a pass left, valid until the next one: of R rows, dummies included.

    `settled` int64 [R, 2]: tokens, and 1 where the logits were numbers. `logits` float32 [R, V], 0 where they were not.
    `streams` [R, n, D]. `context` is that of the rows, for further layers over them.
    """

    settled: Tensor
    logits: Tensor
    streams: Tensor
    context: RowContext
    trace: Trace | None


class RowPasses:
    """Captures and replays.

    Args:
        tables: of the requests, as the passes shall see them.
        newest: int64 [request rows], the relay.
        frequencies: rotary frequencies by compression ratio.
        graphs: how work is recorded.
        buckets: of which sizes.
        workspace_bytes: bound of attention's temporaries.
        in_place: see `PagedContext`.
        beside: how branches of layers run, by the rows of a pass.
        drafting: the model whose prediction block drafts, up to `max_depth` tokens ahead; None: nobody does so here.
    """

    def __init__(
        self,
        model: ServingModel,
        pools: CachePools,
        tables: PageTables,
        newest: Tensor,
        collector: ExtrasCollector,
        frequencies: dict[int, Tensor],
        graphs: Graphs,
        buckets: RowBuckets,
        *,
        workspace_bytes: int,
        in_place: bool = False,
        beside: Callable[[int], Beside] = lambda num_rows: in_line,
        drafting: DraftingModel | None = None,
        max_depth: int = 0,
    ) -> None:
        self._model, self._pools, self._tables, self._newest = model, pools, tables, newest
        self._collector, self._graphs, self._buckets = collector, graphs, buckets
        self._workspace_bytes, self._in_place, self._beside = workspace_bytes, in_place, beside
        self._row_tables = RowTables.of(frequencies)
        config, most, device = model.config, buckets.rows[-1], model.device
        shape = plan_shape(pools.geometry, self._row_tables, config.rope_amplitude)
        self._buffers = PlanBuffers(shape, most, device)
        self._given = torch.zeros(most, len(Column), dtype=torch.int64, device=device)
        self._settled = torch.zeros(most, 2, dtype=torch.int64, device=device)
        self._logits = torch.zeros(most, config.vocab_size, device=device)
        self._streams = torch.zeros(most, config.hc_mult, config.hidden_size, dtype=model.dtype, device=device)
        self._ends = torch.zeros(most, dtype=torch.int64, device=device)
        self._replays: dict[tuple[int, int], Callable[[], RowPass]] = {}
        self._refused: set[tuple[int, int]] = set()
        self.drafts = None
        """What drafts after a replayed pass."""
        if drafting is not None:
            self.drafts = RowDrafts(
                drafting,
                pools,
                self._row_tables,
                PlanBuffers(shape, most, device),
                graphs,
                buckets,
                newest,
                self._given,
                self._settled[:, 0],
                self._ends,
                max_depth=max_depth,
                dtype=model.dtype,
                workspace_bytes=workspace_bytes,
                in_place=in_place,
            )

    def stage(self, plan: StepPlan) -> StagedRows | None:
        """The pass on its way to a bucket; None where it is of another kind: it computes prompts, or is too large."""
        found = _read(plan.chunks)
        if found is None:
            return None
        bucket = self._buckets.find(len(found.rows), found.length)
        if bucket is None:
            return None
        return StagedRows(plan, found.rows, found.given(bucket[0]), bucket, found.length, not found.has_rules)

    def run(self, staged: StagedRows) -> RowPass:
        """Replays the bucket's graph for these rows; captures it first where that has not been done."""
        self._pools.device_tables(self._tables)
        if staged.bucket not in self._replays:
            self._capture(staged.bucket)
        self._send(staged.given)
        return self._replays[staged.bucket]()

    def draft(self, staged: StagedRows, depths: Seq[int]) -> PendingDrafts:
        """Guesses ahead after the pass that was just run, as many tokens of each sequence as wanted."""
        assert self.drafts is not None, "nobody drafts here"
        return self.drafts.draft(depths, staged.length, self._pools.device_tables(self._tables))

    def capture_all(self, say: Callable[[str], None]) -> None:
        """Captures every bucket that has not been captured."""
        missing = [bucket for bucket in self._buckets.all() if bucket not in self._replays]
        for number, (rows, length) in enumerate(missing):
            say(f"capturing passes of {rows} rows, contexts below {length} tokens ({number + 1} of {len(missing)})")
            self._capture((rows, length))
        if missing and self._given.is_cuda:
            torch.cuda.empty_cache()  # what the trials took lies where only captures could take it again

    def forget(self) -> None:
        """Drops what was captured: it names addresses of weights that are not the model's any more."""
        self._replays.clear()
        self._refused.clear()
        if self.drafts is not None:
            self.drafts.forget()
        self._graphs.forget()

    def is_captured(self, bucket: tuple[int, int]) -> bool:
        """Whether passes of that bucket are replayed; else they are launched piece by piece."""
        return bucket in self._replays and bucket not in self._refused

    def _send(self, given: Tensor) -> None:
        if self._given.is_cuda:
            given = given.pin_memory()
        self._given[: len(given)].copy_(given, non_blocking=True)

    def _capture(self, bucket: tuple[int, int]) -> None:
        # Dummies alone: what is run on trial changes nothing.
        self._given.zero_()
        self._given[:, Column.NEXT_DRAFT] = _NO_DRAFT
        mirror = self._pools.device_tables(self._tables)
        # Made outside: what in it never changes need not be made again in every replay.
        context = self._context(*bucket, mirror)
        replay, is_captured = captured_or_not(self._graphs, lambda: self._compute(context, mirror))
        self._replays[bucket] = replay
        if not is_captured:
            self._refused.add(bucket)
        if self.drafts is not None:
            self.drafts.capture(bucket, mirror)

    def _context(self, num_rows: int, max_len: int, mirror: TableMirror) -> RowContext:
        return RowContext(
            self._buffers.head(num_rows),
            self._pools,
            mirror,
            self._row_tables.table,
            max_len,
            workspace_bytes=self._workspace_bytes,
            in_place=self._in_place,
            beside=self._beside(num_rows),
        )

    def _compute(self, context: RowContext, mirror: TableMirror) -> RowPass:
        num_rows, frequencies = context.rows.num_rows, self._row_tables.frequencies
        given = self._given[:num_rows]
        plan_rows(given, self._newest, mirror.windows, mirror.pages, frequencies, self._buffers)
        trace = self._collector.trace()
        streams = self._model(context.rows, context, trace)
        logits = self._model.logits(self._model.hidden(streams))
        least, most = torch.aminmax(logits, dim=-1)
        is_finite = most - least < torch.inf
        own = RowPass(self._settled[:num_rows], self._logits[:num_rows], self._streams[:num_rows], context, trace)
        torch.where(is_finite[:, None], logits, logits.new_zeros(()), out=own.logits)
        own.streams.copy_(streams)
        self._draw(own, is_finite)
        return own

    def _draw(self, own: RowPass, is_finite: Tensor) -> None:
        """Draws a token from every row and finds out what follows from it."""
        draw, given = own.context.draw, self._given[: len(own.logits)]
        drawn = sample(
            own.logits,
            temperature=draw.temperature,
            top_k=draw.top_k,
            top_p=draw.top_p,
            min_p=draw.min_p,
            seeds=draw.seeds,
            positions=draw.positions,
        )
        settle_rows(given, drawn, is_finite, self._newest, self._ends, own.settled)
        if self.drafts is not None:
            self.drafts.observe(own.streams, drawn, own.context)


class _Read(NamedTuple):
    """What a pass's chunks say: whom its rows belong to, and of each row its Columns; floats of each apart."""

    rows: tuple[SampledRow, ...]
    lines: list[tuple[int, ...]]
    floats: list[tuple[float, float, float]]
    length: int
    has_rules: bool

    def given(self, num_rows: int) -> Tensor:
        """int64 [num_rows, len(Column)] on the CPU."""
        count = len(self.lines)
        host = np.empty((num_rows, len(Column)), dtype=np.int64)
        host[:count] = self.lines
        host[:count, Column.TEMPERATURE : Column.MIN_P + 1] = np.array(self.floats).view(np.int64)
        if count < num_rows:
            host[count:] = host[0]
            host[count:, Column.FLAGS] &= ~REAL
            host[count:, Column.OFFSET] = 0
            host[count:, Column.NEXT_DRAFT] = _NO_DRAFT
        return torch.from_numpy(host)


def _read(chunks: tuple[ScheduledChunk, ...]) -> _Read | None:
    """One walk over the chunks; None where they do more than to give tokens."""
    rows: list[SampledRow] = []
    lines: list[tuple[int, ...]] = []
    floats: list[tuple[float, float, float]] = []
    longest, has_rules, count = 0, False, len(chunks)
    for number, (sequence, row, start, length, samples, drafts, stored_len, is_relayed) in enumerate(chunks):
        if not samples or length != 1 + len(drafts) or stored_len > start:
            return None
        flags, token = (REAL | RELAYED, 0) if is_relayed else (REAL, sequence.tokens[start])
        params, seed = sequence.request.params, sequence.seed
        own = params.temperature, params.top_p, params.min_p
        for place in range(length):
            draft = drafts[place] if place < length - 1 else _NO_DRAFT
            at = start + place
            lines.append((token, at, row, flags, place, draft, seed, params.top_k, 0, 0, 0, number, count))
            floats.append(own)
            rows.append(SampledRow(sequence, at + 1, drafts[:place]))
            token = draft
        longest = max(longest, start + length)
        has_rules = has_rules or sequence.has_rules
    if not rows:
        return None
    return _Read(tuple(rows), lines, floats, longest, has_rules)
