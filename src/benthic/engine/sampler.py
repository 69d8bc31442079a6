"""From logits to next tokens. What a row draws depends on its logits, its seed and its position alone."""

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from benthic.engine.plan import SampledToken
from benthic.engine.request import TokenLogprobs
from benthic.engine.scoring import top_logprobs
from benthic.engine.sequence import Sequence
from benthic.kernels.sample import sample


def sample_tokens(logits: Tensor, sequences: Seq[Sequence]) -> tuple[SampledToken, ...]:
    """Chooses the next token of each sequence.

    Args:
        logits: float32 [B, V], one row a sequence, in order.

    Returns:
        B tokens. A row with a logit that is NaN or infinite gives an error and leaves the others alone.
    """
    finite = torch.isfinite(logits).all(dim=-1)
    are_finite = finite.tolist()
    clean = logits if all(are_finite) else logits.masked_fill(~finite[:, None], 0.0)
    chosen = _draw(_ban_early_stops(clean, sequences), sequences).tolist()
    logprobs = _logprobs(clean, chosen, sequences)
    return tuple(
        SampledToken(chosen[row], logprobs[row])
        if are_finite[row]
        else SampledToken(chosen[row], None, f"the logits after {sequence.total_len} tokens are not finite numbers")
        for row, sequence in enumerate(sequences)
    )


def _draw(logits: Tensor, sequences: Seq[Sequence]) -> Tensor:
    params = [sequence.request.params for sequence in sequences]
    device = logits.device
    return sample(
        logits,
        temperature=torch.tensor([p.temperature for p in params], dtype=torch.float32, device=device),
        top_k=torch.tensor([p.top_k for p in params], device=device),
        top_p=torch.tensor([p.top_p for p in params], dtype=torch.float32, device=device),
        min_p=torch.tensor([p.min_p for p in params], dtype=torch.float32, device=device),
        seeds=torch.tensor([sequence.seed for sequence in sequences], device=device),
        positions=torch.tensor([sequence.total_len for sequence in sequences], device=device),
    )


def _ban_early_stops(logits: Tensor, sequences: Seq[Sequence]) -> Tensor:
    """-inf at the stopping tokens of sequences that have not reached `min_tokens`."""
    rows = [row for row, s in enumerate(sequences) if s.num_generated < s.request.params.min_tokens and s.stop_ids]
    if not rows:
        return logits
    logits = logits.clone()
    for row in rows:
        logits[row, sorted(sequences[row].stop_ids)] = float("-inf")
    return logits


def _logprobs(logits: Tensor, chosen: Seq[int], sequences: Seq[Sequence]) -> list[TokenLogprobs | None]:
    """Of the rows whose request wants them, each cut to the number of alternatives it asked for."""
    wanted = {row: s.request.params.logprobs for row, s in enumerate(sequences)}
    counts = {row: count for row, count in wanted.items() if count is not None}
    found: list[TokenLogprobs | None] = [None] * len(wanted)
    if counts:
        picked = logits.index_select(0, torch.tensor(list(counts), device=logits.device))
        tops = top_logprobs(picked, [chosen[row] for row in counts], max(counts.values()))
        for (row, count), top in zip(counts.items(), tops, strict=True):
            found[row] = TokenLogprobs(top.chosen, top.top[:count])
    return found
