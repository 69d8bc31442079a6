"""Drafts by the model's prediction block after a replayed pass: a chain of captured steps that the host never waits in.

The block runs over the pass's rows within the captured pass. Then the first step guesses at every sequence's last row
that counts, and each further one runs the block over one row a sequence, at its newest guess but one, and guesses
again. All sequences are taken as far as the one that wants most; what the others get too much nobody reads, and what
the block stores for it lies ahead of them, where the next pass writes. Guesses are those of `drafting.mtp`.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from benthic.cache.pools import CachePools
from benthic.cache.row_context import RowContext, RowTables
from benthic.cache.table_mirror import TableMirror
from benthic.engine.drafting.mtp import DraftingModel
from benthic.engine.graphs import Graphs, captured_or_not
from benthic.engine.host_copy import HostCopy
from benthic.engine.row_buckets import RowBuckets
from benthic.kernels.pass_plan import Column, PlanBuffers, plan_rows
from benthic.kernels.pass_plan.layout import REAL
from benthic.kernels.sample import sample
from benthic.models.context import AttentionContext


class PendingDrafts:
    """Drafts on their way to the host."""

    def __init__(self, drafts: Tensor, depths: Seq[int]) -> None:
        """`drafts` int64 [>= S, >= depth], which may be overwritten afterwards; `depths`: those wanted of each."""
        self._depths = depths
        self._copy = HostCopy([drafts if drafts.is_cuda else drafts.clone()])

    def result(self) -> tuple[tuple[int, ...], ...]:
        """Those of each sequence, waiting for them."""
        [drafts] = self._copy.wait()
        found = zip(drafts[: len(self._depths)].tolist(), self._depths, strict=True)
        return tuple(tuple(own[:depth]) for own, depth in found)


class RowDrafts:
    """The chain after passes of some buckets.

    Args:
        newest, given, drawn, ends: of the passes, see `kernels.pass_plan.settle_rows`; where they always lie.
        buffers: of plans of the chain's own rows.
        max_depth: most guesses of a sequence.
        in_place: see `PagedContext`.
    """

    def __init__(
        self,
        model: DraftingModel,
        pools: CachePools,
        row_tables: RowTables,
        buffers: PlanBuffers,
        graphs: Graphs,
        buckets: RowBuckets,
        newest: Tensor,
        given: Tensor,
        drawn: Tensor,
        ends: Tensor,
        *,
        max_depth: int,
        dtype: torch.dtype,
        workspace_bytes: int,
        in_place: bool = False,
    ) -> None:
        self._model, self._pools, self._row_tables, self._buffers = model, pools, row_tables, buffers
        self._graphs, self._buckets, self._workspace_bytes = graphs, buckets, workspace_bytes
        self._in_place = in_place
        self._newest, self._pass_given, self._drawn, self._ends = newest, given, drawn, ends
        device, most, sizes = given.device, len(given), model.config
        self._pass_streams = torch.zeros(most, sizes.hc_mult, sizes.hidden_size, dtype=dtype, device=device)
        self._streams = torch.zeros_like(self._pass_streams)
        self._given, self._guess = torch.zeros_like(given), torch.zeros_like(given[:, 0])
        self._drafts = torch.zeros(most, max_depth, dtype=torch.int64, device=device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        self._firsts: dict[int, Callable[[], None]] = {}
        self._nexts: dict[tuple[int, int], Callable[[], None]] = {}

    def observe(self, streams: Tensor, next_ids: Tensor, context: AttentionContext) -> None:
        """Runs the block over the rows of a pass, within it."""
        self._pass_streams[: len(streams)].copy_(self._model.mtp_forward(0, streams, next_ids, context))

    def draft(self, depths: Seq[int], length: int, mirror: TableMirror) -> PendingDrafts:
        """Guesses ahead of the S sequences of the pass that was just replayed.

        Args:
            depths: drafts wanted of each.
            length: of the longest sequence in tokens.
        """
        depth, bound = max(depths), self._buckets.contexts[-1]
        bucket = self._buckets.find(len(depths), min(length + depth, bound))
        assert bucket is not None, "there are no more sequences than rows"
        self._first_of(bucket[0], mirror)()
        for _ in range(depth - 1):
            self._next_of(bucket, mirror)()
        return PendingDrafts(self._drafts[: len(depths), :depth], depths)

    def capture(self, bucket: tuple[int, int], mirror: TableMirror) -> None:
        """Records the steps of a bucket."""
        self._given.zero_()
        self._first_of(bucket[0], mirror)
        self._next_of(bucket, mirror)

    def forget(self) -> None:
        """See `RowPasses.forget`."""
        self._firsts.clear()
        self._nexts.clear()

    def _next_of(self, bucket: tuple[int, int], mirror: TableMirror) -> Callable[[], None]:
        rows, max_len = bucket
        if bucket not in self._nexts:
            plan, table = self._buffers.head(rows), self._row_tables.table
            context = RowContext(
                plan,
                self._pools,
                mirror,
                table,
                max_len,
                workspace_bytes=self._workspace_bytes,
                in_place=self._in_place,
            )
            self._nexts[bucket], _ = captured_or_not(self._graphs, lambda: self._next(context, max_len, mirror))
        return self._nexts[bucket]

    def _first_of(self, rows: int, mirror: TableMirror) -> Callable[[], None]:
        if rows not in self._firsts:
            self._firsts[rows], _ = captured_or_not(self._graphs, lambda: self._first(rows, mirror))
        return self._firsts[rows]

    def _first(self, count: int, mirror: TableMirror) -> None:
        """Guesses from what the block made of the pass; the chain's rows then are those of the drawn tokens."""
        ends = self._ends[:count]
        is_there = torch.arange(count, device=ends.device) < self._pass_given[0, Column.NUM_SEQUENCES]
        ends = torch.where(is_there, ends, 0)
        given = self._pass_given.index_select(0, ends)
        given[:, Column.FLAGS] = is_there.to(torch.int64) * REAL
        given[:, Column.TOKEN] = self._drawn.index_select(0, ends)
        self._given[:count] = given
        self._step.zero_()
        self._plan(count, mirror)
        self._guess_from(count, self._pass_streams.index_select(0, ends), self._buckets.contexts[-1])

    def _next(self, context: RowContext, max_len: int, mirror: TableMirror) -> None:
        """Runs the block one position further and guesses from that."""
        count = context.rows.num_rows
        self._plan(count, mirror)
        streams = self._model.mtp_forward(0, self._streams[:count], self._guess[:count], context)
        self._given[:count, Column.TOKEN] = self._guess[:count]
        self._guess_from(count, streams, max_len)

    def _plan(self, count: int, mirror: TableMirror) -> None:
        frequencies = self._row_tables.frequencies
        plan_rows(self._given[:count], self._newest, mirror.windows, mirror.pages, frequencies, self._buffers)

    def _guess_from(self, count: int, streams: Tensor, max_len: int) -> None:
        """Draws after the rows that the streams stand at, keeps the guess, and moves the rows on by one position."""
        own, draw = self._given[:count], self._buffers.head(count).draw
        guess = sample(
            self._model.logits(self._model.mtp_hidden(0, streams)),
            temperature=draw.temperature,
            top_k=draw.top_k,
            top_p=draw.top_p,
            min_p=draw.min_p,
            seeds=draw.seeds,
            # The row holds the newest token but one: its draw was the newest, and the next is two further.
            positions=draw.positions + 1,
        )
        self._drafts[:count].scatter_(1, self._step.expand(count, 1), guess[:, None])
        self._step.add_(1).clamp_(max=self._drafts.shape[1] - 1)
        self._guess[:count] = guess
        self._streams[:count] = streams
        # Behind the last position that there may be, guesses are read by nobody.
        own[:, Column.POSITION] = (own[:, Column.POSITION] + 1).clamp(max=max_len - 1)
