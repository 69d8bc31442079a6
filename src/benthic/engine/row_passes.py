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
from benthic.engine.graphs import Graphs
from benthic.engine.logits_rules import SampledRow
from benthic.engine.plan import ScheduledChunk, StepPlan
from benthic.engine.row_buckets import RowBuckets
from benthic.engine.row_drafts import PendingDrafts, RowDrafts
from benthic.engine.sampling import SamplingParams
from benthic.engine.serving_model import ServingModel
from benthic.kernels.pass_plan import Column, PlanBuffers, plan_rows, settle_rows
from benthic.kernels.pass_plan.layout import REAL, RELAYED
from benthic.kernels.sample import sample
from benthic.models.trace import Trace

_NO_DRAFT = -1


@dataclass(frozen=True, slots=True)
class StagedRows:
    """A pass on the host, ready to be sent.

    `given` int64 [bucket rows, len(Column)]; `rows`: whom the N real ones belong to. `is_plain`: the captured drawing
    is all that they ask for; else they are drawn from the logits once more. `length`: of the longest sequence.
    """

    plan: StepPlan
    rows: tuple[SampledRow, ...]
    given: Tensor
    bucket: tuple[int, int]
    length: int
    is_plain: bool

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
        drafting: DraftingModel | None = None,
        max_depth: int = 0,
    ) -> None:
        self._model, self._pools, self._tables, self._newest = model, pools, tables, newest
        self._collector, self._graphs, self._buckets = collector, graphs, buckets
        self._workspace_bytes = workspace_bytes
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
            )

    def stage(self, plan: StepPlan) -> StagedRows | None:
        """The pass on its way to a bucket; None where it is of another kind: it computes prompts, or is too large."""
        chunks = plan.chunks
        if not all(_only_samples(chunk) for chunk in chunks):
            return None
        longest = max((chunk.start + chunk.length for chunk in chunks), default=0)
        bucket = self._buckets.find(plan.num_rows, longest)
        if bucket is None or not chunks:
            return None
        rows = tuple(row for chunk in chunks for row in _sampled_rows(chunk))
        is_plain = all(_is_plain(chunk.sequence.request.params) for chunk in chunks)
        return StagedRows(plan, rows, _given(chunks, rows, bucket[0]), bucket, longest, is_plain)

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

    def forget(self) -> None:
        """Drops what was captured: it names addresses of weights that are not the model's any more."""
        self._replays.clear()
        if self.drafts is not None:
            self.drafts.forget()

    @property
    def num_captured(self) -> int:
        """Buckets that a replay exists of."""
        return len(self._replays)

    def _send(self, given: Tensor) -> None:
        if self._given.is_cuda:
            given = given.pin_memory()
        self._given[: len(given)].copy_(given, non_blocking=True)

    def _capture(self, bucket: tuple[int, int]) -> None:
        # Dummies alone: what is run on trial changes nothing.
        self._given.zero_()
        self._given[:, Column.NEXT_DRAFT] = _NO_DRAFT
        mirror = self._pools.device_tables(self._tables)
        self._replays[bucket] = self._graphs.capture(lambda: self._compute(*bucket, mirror))
        if self.drafts is not None:
            self.drafts.capture(bucket, mirror)

    def _compute(self, num_rows: int, max_len: int, mirror: TableMirror) -> RowPass:
        given, plan = self._given[:num_rows], self._buffers.head(num_rows)
        plan_rows(given, self._newest, mirror.windows, mirror.pages, self._row_tables.frequencies, self._buffers)
        context = RowContext(
            plan, self._pools, mirror, self._row_tables.table, max_len, workspace_bytes=self._workspace_bytes
        )
        trace = self._collector.trace()
        streams = self._model(context.rows, context, trace)
        logits = self._model.logits(self._model.hidden(streams))
        least, most = torch.aminmax(logits, dim=-1)
        is_finite = torch.isfinite(least) & torch.isfinite(most)
        logits = torch.where(is_finite[:, None], logits, 0.0)
        drawn = sample(
            logits,
            temperature=given[:, Column.TEMPERATURE : Column.TEMPERATURE + 1].view(torch.float64)[:, 0].float(),
            top_k=None,
            top_p=None,
            min_p=None,
            seeds=given[:, Column.SEED],
            positions=plan.next_positions,
        )
        own = RowPass(self._settled[:num_rows], self._logits[:num_rows], self._streams[:num_rows], context, trace)
        settle_rows(given, drawn, is_finite, self._newest, self._ends, own.settled)
        own.logits.copy_(logits)
        own.streams.copy_(streams)
        if self.drafts is not None:
            self.drafts.observe(streams, drawn, context)
        return own


def _only_samples(chunk: ScheduledChunk) -> bool:
    return chunk.samples and chunk.length == 1 + len(chunk.drafts) and chunk.stored_len <= chunk.start


def _is_plain(params: SamplingParams) -> bool:
    """Whether a token follows from logits, temperature and seed alone."""
    return not (params.has_rules or params.top_k or params.top_p < 1.0 or params.min_p)


def _sampled_rows(chunk: ScheduledChunk) -> list[SampledRow]:
    position, drafts = chunk.start + 1, chunk.drafts
    return [SampledRow(chunk.sequence, position + count, drafts[:count]) for count in range(len(drafts) + 1)]


def _given(chunks: tuple[ScheduledChunk, ...], rows: tuple[SampledRow, ...], num_rows: int) -> Tensor:
    """What the host says of every row, int64 [num_rows, len(Column)] on the CPU."""
    lines: list[tuple[int, ...]] = []
    for number, chunk in enumerate(chunks):
        sequence, start = chunk.sequence, chunk.start
        flags, token = (REAL | RELAYED, 0) if chunk.is_relayed else (REAL, sequence.tokens[start])
        for place, draft in enumerate((*chunk.drafts, _NO_DRAFT)):
            own = (token, start + place, chunk.row, flags, place, draft, sequence.seed, 0, number, len(chunks))
            lines.append(own)
            token = draft
    host = np.empty((num_rows, len(Column)), dtype=np.int64)
    host[: len(lines)] = lines
    temperatures = np.array([row.sequence.request.params.temperature for row in rows], dtype=np.float64)
    host[: len(lines), Column.TEMPERATURE] = temperatures.view(np.int64)
    host[len(lines) :] = host[0]
    host[len(lines) :, Column.FLAGS] &= ~REAL
    host[len(lines) :, Column.OFFSET] = 0
    host[len(lines) :, Column.NEXT_DRAFT] = _NO_DRAFT
    return torch.from_numpy(host)
