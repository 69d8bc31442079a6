"""A computed pass as a drafter sees it."""

from collections.abc import Callable
from collections.abc import Sequence as Seq

from torch import Tensor

from benthic.engine.batch import Batch, SampledRows, single_rows
from benthic.engine.drafting.protocol import ComputedPass
from benthic.engine.plan import ScheduledChunk
from benthic.engine.row_masks import row_masks
from benthic.engine.sampled_row import SampledRow
from benthic.engine.sampler import PendingSamples, draw_tokens
from benthic.engine.speculate import Verified, tokens_that_count
from benthic.models.context import AttentionContext, Rows

ContextOf = Callable[[Rows], AttentionContext]


class DraftedEnds:
    """`SequenceEnds` of the chunks that sampled. Made only where drafts are wanted: it waits for the device."""

    def __init__(
        self, sampled: SampledRows, samples: PendingSamples, verified: Verified, context_of: ContextOf, min_rows: int
    ) -> None:
        self._chunks, self._context_of, self._min_rows = sampled.chunks, context_of, min_rows
        self.last_rows = sampled.row_index[verified.last_places]
        self._device = self.last_rows.device
        tokens: list[int] = samples.token_ids.tolist()
        num_accepted = verified.num_accepted.tolist()
        self._runs = tokens_that_count(tokens, (len(chunk.drafts) for chunk in self._chunks), num_accepted)
        self.newest_ids = tuple(run[-1] for run in self._runs)
        self.last_positions = tuple(
            _first_sampled(chunk) + accepted for chunk, accepted in zip(self._chunks, num_accepted, strict=True)
        )

    def draw(self, logits: Tensor, which: Seq[int], drafts: Seq[Seq[int]]) -> list[int]:
        """See `SequenceEnds`."""
        rows = [
            SampledRow(
                self._chunks[place].sequence,
                self.last_positions[place] + 2 + len(own),
                (*self._runs[place], *own),
            )
            for place, own in zip(which, drafts, strict=True)
        ]
        tokens: list[int] = draw_tokens(logits, rows, row_masks(rows)).tolist()
        return tokens

    def single_rows(self, which: Seq[int], positions: Seq[int], token_ids: Seq[int]) -> tuple[Rows, AttentionContext]:
        """See `SequenceEnds`."""
        request_rows = [self._chunks[place].row for place in which]
        rows = single_rows(request_rows, positions, token_ids, self._min_rows, self._device)
        return rows, self._context_of(rows)


def computed_pass(
    batch: Batch, context: AttentionContext, streams: Tensor, samples: PendingSamples | None, ends: DraftedEnds | None
) -> ComputedPass:
    """The pass with every row's next token: the host's where it knew it, else the one that was drawn."""
    next_ids = batch.next_ids
    if batch.sampled is not None and samples is not None:
        sampled_rows = batch.sampled.row_index[: len(batch.sampled.rows)]
        next_ids.index_copy_(0, sampled_rows, samples.token_ids)
    return ComputedPass(batch.rows, context, streams, next_ids, ends)


def _first_sampled(chunk: ScheduledChunk) -> int:
    """Position of the first row that a token is drawn from."""
    return chunk.start + chunk.length - 1 - len(chunk.drafts)
