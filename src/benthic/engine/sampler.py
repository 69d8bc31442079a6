"""From logits to next tokens. What a row draws depends on its logits, its rules, its seed and its position alone."""

from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from benthic.engine.host_copy import HostCopy, to_device
from benthic.engine.logits_rules import apply_rules
from benthic.engine.plan import SampledToken
from benthic.engine.request import TokenLogprobs
from benthic.engine.row_masks import RowMasks, row_masks
from benthic.engine.sampled_row import SampledRow
from benthic.engine.scoring import read_ranked
from benthic.kernels.cross_entropy import RankedLogprobs, ranked_logprobs
from benthic.kernels.sample import sample


class PendingSamples:
    """Tokens that are drawn on the device and on their way to the host."""

    def __init__(
        self,
        rows: Seq[SampledRow],
        token_ids: Tensor,
        drawn: Seq[Tensor],
        logprobs: dict[int, int],
        ranked: Seq[Tensor],
        masks: RowMasks,
    ) -> None:
        """`drawn`: tokens [N] and whether their logits were numbers [N], or both together, int64 [N, 2]."""
        self.token_ids = token_ids
        """int64 [N], on the logits' device: what the next pass may read without the host."""
        self._positions = [row.position for row in rows]
        self._logprobs, self._num_ranked = logprobs, len(ranked)
        self._stuck = {place: mask for place, mask in masks.items() if mask.error is not None}
        self._copy = HostCopy([*drawn, *ranked])

    def result(self) -> tuple[SampledToken, ...]:
        """The N tokens, waiting for them. A row with a logit that is NaN or infinite, or with a grammar that admits no
        token, holds an error."""
        copies = self._copy.wait()
        drawn, ranked = copies[: len(copies) - self._num_ranked], copies[len(copies) - self._num_ranked :]
        token_ids, is_finite = drawn if len(drawn) == 2 else drawn[0].unbind(1)
        logprobs = self._read_logprobs(RankedLogprobs(*ranked)) if ranked else {}
        return tuple(
            SampledToken(token, logprobs.get(row))
            if fine and row not in self._stuck
            else self._failed(row, token, fine)
            for row, (token, fine) in enumerate(zip(token_ids.tolist(), is_finite.tolist(), strict=True))
        )

    def _failed(self, row: int, token: int, is_finite: bool) -> SampledToken:
        if not is_finite:
            error = f"the logits after {self._positions[row]} tokens are not finite numbers"
            return SampledToken(token, None, error, "numbers")
        mask = self._stuck[row]
        return SampledToken(token, None, mask.error, mask.error_kind)

    def _read_logprobs(self, ranked: RankedLogprobs) -> dict[int, TokenLogprobs]:
        """By row, each cut to the number of alternatives it asked for."""
        counted = zip(self._logprobs.items(), read_ranked(ranked), strict=True)
        return {row: TokenLogprobs(found.chosen, found.top[:count]) for (row, count), found in counted}


def sample_rows(logits: Tensor, rows: Seq[SampledRow]) -> PendingSamples:
    """Chooses one token a row; nothing here waits for the device.

    Args:
        logits: float32 [N, V].
        rows: what each row of logits belongs to. Rows of one sequence, verified drafts, each name the drafts before
            them, and get the tokens that they would get if these had been generated.
    """
    assert len(logits) == len(rows), (len(logits), len(rows))
    least, most = torch.aminmax(logits, dim=-1)
    is_finite = torch.isfinite(least) & torch.isfinite(most)
    if logits.is_cuda or not bool(is_finite.all()):
        logits = torch.where(is_finite[:, None], logits, 0.0)
    masks = row_masks(rows)
    token_ids = draw_tokens(logits, rows, masks)
    wanted = _wanted(rows)
    ranked = _rank(logits, token_ids, wanted) if wanted else ()
    return PendingSamples(rows, token_ids, (token_ids, is_finite), wanted, ranked, masks)


def settled_samples(settled: Tensor, logits: Tensor, rows: Seq[SampledRow]) -> PendingSamples:
    """The same where tokens have been drawn.

    Args:
        settled: int64 [R, 2], R >= N, see `kernels.pass_plan.settle_rows`. It may be overwritten afterwards.
        logits: float32 [R, V], finite.
    """
    settled = settled[: len(rows)]
    token_ids, wanted = settled[:, 0], _wanted(rows)
    ranked = _rank(logits[: len(rows)], token_ids, wanted) if wanted else ()
    return PendingSamples(rows, token_ids, (settled if settled.is_cuda else settled.clone(),), wanted, ranked, {})


def _wanted(rows: Seq[SampledRow]) -> dict[int, int]:
    """Alternatives by row, of those that want log-probabilities."""
    return {
        row: count for row, entry in enumerate(rows) if (count := entry.sequence.request.params.logprobs) is not None
    }


def draw_tokens(logits: Tensor, rows: Seq[SampledRow], masks: RowMasks) -> Tensor:
    """The tokens alone, int64 [N] on the logits' device: for guesses, which nobody reports on."""
    logits = apply_rules(logits, rows, masks)
    settings = [row.sequence.request.params for row in rows]
    # One copy to the device holds all settings: its rows are int64, or float64 seen as such.
    host = np.empty((6, len(rows)), np.int64)
    host[0] = [row.sequence.seed for row in rows]
    host[1] = [row.position for row in rows]
    host[2] = [params.top_k for params in settings]
    values = host[3:].view(np.float64)
    values[0] = [params.temperature for params in settings]
    values[1] = [params.top_p for params in settings]
    values[2] = [params.min_p for params in settings]
    cuts = bool(host[2].any() or (values[1] < 1.0).any() or values[2].any())
    both = to_device(torch.from_numpy(host), logits.device)
    shares = both[3:].view(torch.float64).to(torch.float32)
    return sample(
        logits,
        temperature=shares[0],
        top_k=both[2] if cuts else None,
        top_p=shares[1] if cuts else None,
        min_p=shares[2] if cuts else None,
        seeds=both[0],
        positions=both[1],
    )


def _rank(logits: Tensor, token_ids: Tensor, wanted: dict[int, int]) -> RankedLogprobs:
    if len(wanted) < len(logits):
        places = to_device(torch.tensor(list(wanted)), logits.device)
        logits, token_ids = logits[places], token_ids[places]
    return ranked_logprobs(logits, token_ids, max(wanted.values()))
