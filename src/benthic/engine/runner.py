"""Runs passes of the model over the cache: clears, forward, sampling, verification, drafting, copies out.

A launched pass touches the device and this object alone; passes run in the order in which they were launched. The
relay holds the newest token of every request row on the device: a row whose token is still in flight takes it from
there.
"""

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from benthic.cache.paged_context import PagedContext
from benthic.cache.pools import CachePools
from benthic.cache.tables import Ints, PageTables
from benthic.cache.work import CacheWork
from benthic.engine.batch import Batch, SampledRows, build_batch
from benthic.engine.cpu import hold_threads
from benthic.engine.draft_pass import DraftedEnds, computed_pass
from benthic.engine.drafting.mtp import MtpDrafter
from benthic.engine.drafting.protocol import Drafter
from benthic.engine.extras import ExtrasCollector, PendingExtras
from benthic.engine.graphs import Graphs
from benthic.engine.outcome import Outcome, PromptScores
from benthic.engine.pending import PassLane, PendingStep
from benthic.engine.plan import StepPlan, StepResult
from benthic.engine.row_buckets import RowBuckets
from benthic.engine.row_drafts import PendingDrafts
from benthic.engine.row_passes import RowPass, RowPasses, StagedRows
from benthic.engine.sampler import PendingSamples, sample_rows, settled_samples
from benthic.engine.scoring import score_rows
from benthic.engine.serving_model import ServingModel
from benthic.engine.side_stream import branches
from benthic.engine.speculate import Verified, verify
from benthic.kernels.sparse_attention import DEFAULT_WORKSPACE_BYTES
from benthic.models.context import AttentionContext, Rows
from benthic.models.rotary import layer_frequencies


class Runner(Protocol):
    """What the engine asks of whoever computes its plans."""

    def launch(self, plan: StepPlan, work: CacheWork, depths: Seq[int] = ()) -> PendingStep:
        """Starts a pass after those launched before.

        Args:
            work: the cache's device work to be done before it.
            depths: drafts wanted for each chunk that samples; empty: none.
        """
        ...

    def warm_up(self, say: Callable[[str], None]) -> None:
        """Captures passes that would else be captured when they first occur; `say` is told what is being done."""
        ...

    def weights_changed(self) -> None:
        """The model's weights lie at other addresses. Nothing is in flight."""
        ...

    def close(self) -> None:
        """Waits for what was launched."""
        ...


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Cells of the page tables as they were when a pass was launched, int64 [n] each."""

    rows: Ints
    numbers: Ints
    pages: Ints
    windows: Ints


class ModelRunner:
    """A model with the tensors of one cache.

    Args:
        tables: the cache manager's.
        drafter: sees every pass if it wants to.
        collector: takes out what requests may have returned besides tokens.
        num_threads: torch's intra-op threads while a pass runs on the CPU.
        overlaps: passes are launched while earlier ones run.
        workspace_bytes: bound of attention's temporaries that grow with the context.
        graphs, buckets: captures passes that only decode and verify, of these sizes; None: every pass is planned on
            the host and launched piece by piece.
    """

    def __init__(
        self,
        model: ServingModel,
        pools: CachePools,
        tables: PageTables,
        drafter: Drafter,
        collector: ExtrasCollector,
        *,
        num_threads: int = 1,
        overlaps: bool = False,
        workspace_bytes: int = DEFAULT_WORKSPACE_BYTES,
        graphs: Graphs | None = None,
        buckets: RowBuckets | None = None,
    ) -> None:
        self._workspace_bytes = workspace_bytes
        self._model, self._pools, self._drafter, self._collector = model, pools, drafter, collector
        self._device, self._num_threads = model.device, num_threads
        # On the CPU the operations one by one are as fast.
        self._in_place = model.device.type == "cuda"
        shape = pools.geometry
        self._frequencies = {
            ratio: layer_frequencies(model.config, ratio).to(model.device) for ratio in shape.layer_ratios
        }
        self._draft_ratios = {layer.ratio for layer in shape.layers[shape.num_main_layers :]}
        self._relay = torch.zeros(pools.capacity.num_rows, dtype=torch.int64, device=model.device)
        self._lane = PassLane(in_thread=overlaps and model.device.type == "cpu")
        self._source = self._tables = tables
        if self._lane.in_thread:
            # The manager goes on changing its tables while a pass runs, so passes read a copy that follows in order.
            self._tables = PageTables(*tables.pages.shape)
        self._rows = None if graphs is None or buckets is None else self._row_passes(graphs, buckets)

    def launch(self, plan: StepPlan, work: CacheWork, depths: Seq[int] = ()) -> PendingStep:
        """See `Runner`."""
        changes = self._changes() if self._lane.in_thread else None
        staged = None if self._rows is None else self._rows.stage(plan)
        if staged is not None:
            batch = self._batch_of(staged)
            return self._lane.launch(lambda: self._run_rows(staged, batch, work, changes, depths))
        whole = build_batch(plan, self._model.min_rows, self._device)
        return self._lane.launch(lambda: self._run(whole, work, changes, depths))

    @torch.inference_mode()
    def warm_up(self, say: Callable[[str], None]) -> None:
        """See `Runner`."""
        if self._rows is not None:
            self._rows.capture_all(say)

    def weights_changed(self) -> None:
        """See `Runner`."""
        if self._rows is not None:
            self._rows.forget()

    def close(self) -> None:
        """See `Runner`."""
        self._lane.close()

    def _changes(self) -> TableChanges:
        rows, numbers = self._source.take_changes()
        return TableChanges(rows, numbers, self._source.pages[rows, numbers], self._source.windows[rows, numbers])

    @torch.inference_mode()
    def _run(
        self, batch: Batch, work: CacheWork, changes: TableChanges | None, depths: Seq[int]
    ) -> Callable[[], StepResult]:
        started_s = time.perf_counter()
        self._prepare(work, changes)
        if batch.relayed is not None:
            newest = self._relay.index_select(0, batch.relayed.request_rows)
            batch.rows.token_ids.index_copy_(0, batch.relayed.rows, newest)
        context, trace = self._context(batch.rows), self._collector.trace()
        streams = self._model(batch.rows, context, trace)
        samples = verified = None
        if batch.sampled is not None:
            samples, verified = self._sample(self._logits(streams, batch.sampled), batch.sampled)
        scores = self._score_prompts(streams, batch)
        extras = self._collector.collect(trace, batch.rows.chunks)
        drafts = self._draft(batch, context, streams, samples, verified, depths)
        outcome = Outcome(
            plan=batch.plan,
            samples=samples,
            scores=scores,
            extras=extras,
            drafts=drafts,
            started_s=started_s,
            seconds=time.perf_counter() - started_s if self._device.type == "cpu" else None,
        )
        return outcome.collect

    @torch.inference_mode()
    def _run_rows(
        self, staged: StagedRows, batch: Batch | None, work: CacheWork, changes: TableChanges | None, depths: Seq[int]
    ) -> Callable[[], StepResult]:
        """A pass that is replayed. `batch` is there where more is wanted of it than plainly drawn tokens."""
        started_s = time.perf_counter()
        self._prepare(work, changes)
        assert self._rows is not None
        done = self._rows.run(staged)
        extras: PendingExtras | None = None
        drafts: Seq[Seq[int]] | PendingDrafts = ()
        samples = settled_samples(done.settled, done.logits, staged.rows) if staged.is_drawn else None
        if samples is not None and self._rows.drafts is not None and any(depths):
            drafts = self._rows.draft(staged, depths)
        if batch is not None:
            extras = self._collector.collect(done.trace, batch.rows.chunks)
            if samples is None or self._follows:
                samples, drafts = self._follow(batch, done, samples, depths)
        assert samples is not None, "rows that are drawn with rules have a batch"
        outcome = Outcome(
            plan=staged.plan,
            samples=samples,
            scores=(),
            extras=extras,
            drafts=drafts,
            started_s=started_s,
            seconds=time.perf_counter() - started_s if self._device.type == "cpu" else None,
            is_replayed=self._rows.is_captured(staged.bucket),
        )
        return outcome.collect

    @property
    def _follows(self) -> bool:
        """Whether a drafter sees replayed passes from outside."""
        return self._drafter.sees_passes and (self._rows is None or self._rows.drafts is None)

    def _follow(
        self, batch: Batch, done: RowPass, samples: PendingSamples | None, depths: Seq[int]
    ) -> tuple[PendingSamples, Seq[Seq[int]]]:
        """Draws by the rules of the requests where they have any, and drafts."""
        sampled = batch.sampled
        assert sampled is not None, "every row of a replayed pass gives a token"
        if samples is None:
            samples, verified = self._sample(done.logits[: len(sampled.rows)], sampled)
        else:
            verified = verify(samples.token_ids, sampled.places, sampled.drafts)
        return samples, self._draft(batch, done.context, done.streams, samples, verified, depths)

    def _batch_of(self, staged: StagedRows) -> Batch | None:
        """The same pass as other parts know it, where they have a share in it; as many rows as are replayed."""
        if staged.is_drawn and not self._follows and not self._collector.keeps_any:
            return None
        return build_batch(staged.plan, staged.num_rows, self._device)

    def _row_passes(self, graphs: Graphs, buckets: RowBuckets) -> RowPasses:
        with torch.inference_mode():
            return RowPasses(
                self._model,
                self._pools,
                self._tables,
                self._relay,
                self._collector,
                self._frequencies,
                graphs,
                buckets,
                workspace_bytes=self._workspace_bytes,
                in_place=self._in_place,
                beside=branches(self._device),
                drafting=self._drafter.model if isinstance(self._drafter, MtpDrafter) else None,
                max_depth=self._pools.geometry.max_draft_len,
            )

    def _prepare(self, work: CacheWork, changes: TableChanges | None) -> None:
        if self._device.type == "cpu":
            # Somebody else's torch.set_num_threads must not change a row's bits.
            hold_threads(self._num_threads)
        if changes is not None:
            self._tables.pages[changes.rows, changes.numbers] = changes.pages
            self._tables.windows[changes.rows, changes.numbers] = changes.windows
        self._pools.apply(work)

    def _context(self, rows: Rows) -> PagedContext:
        return self._paged(rows, self._frequencies)

    def _draft_context(self, rows: Rows) -> PagedContext:
        """For passes of the drafter alone, whose layers compress nothing: nothing else is planned."""
        return self._paged(rows, {ratio: self._frequencies[ratio] for ratio in self._draft_ratios})

    def _paged(self, rows: Rows, frequencies: Mapping[int, Tensor]) -> PagedContext:
        bound = self._workspace_bytes
        return PagedContext(
            self._model.config,
            rows,
            self._pools,
            self._tables,
            frequencies,
            workspace_bytes=bound,
            in_place=self._in_place,
        )

    def _logits(self, streams: Tensor, sampled: SampledRows) -> Tensor:
        hidden = self._model.hidden(streams.index_select(0, sampled.row_index))
        return self._model.logits(hidden)[: len(sampled.rows)]

    def _sample(self, logits: Tensor, sampled: SampledRows) -> tuple[PendingSamples, Verified]:
        samples = sample_rows(logits, sampled.rows)
        verified = verify(samples.token_ids, sampled.places, sampled.drafts)
        self._relay.index_copy_(0, sampled.request_rows, verified.newest)
        return samples, verified

    def _score_prompts(self, streams: Tensor, batch: Batch) -> list[PromptScores]:
        """Log-probabilities of prompt tokens, for the requests that ask for them."""
        scores = []
        for place, (run, chunk) in enumerate(zip(batch.rows.chunks, batch.plan.chunks, strict=True)):
            num_top = chunk.sequence.request.params.prompt_logprobs
            if num_top is None or chunk.start + 1 >= chunk.sequence.prompt_len:
                continue
            end = min(chunk.start + chunk.length + 1, chunk.sequence.prompt_len)
            targets = chunk.sequence.tokens[chunk.start + 1 : end]
            hidden = self._model.hidden(streams[run.start_row : run.start_row + len(targets)])
            scores.append(PromptScores(place, score_rows(self._model, hidden, targets, num_top)))
        return scores

    def _draft(
        self,
        batch: Batch,
        context: AttentionContext,
        streams: Tensor,
        samples: PendingSamples | None,
        verified: Verified | None,
        depths: Seq[int],
    ) -> Seq[Seq[int]]:
        """Lets the drafter see the pass; its drafts for each chunk that samples."""
        if not self._drafter.sees_passes:
            return ()
        ends = None
        if batch.sampled is not None and samples is not None and verified is not None and any(depths):
            ends = DraftedEnds(batch.sampled, samples, verified, self._draft_context, self._model.min_rows)
        return self._drafter.observe(computed_pass(batch, context, streams, samples, ends), depths)
