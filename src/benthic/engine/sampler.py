"""From logits to next tokens. What a row draws depends on its logits, its seed and its position alone."""

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from benthic.engine.plan import SampledToken
from benthic.engine.request import Sequence, TokenLogprobs
from benthic.kernels.cross_entropy import token_logprobs
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
    ids = _draw(_ban_early_stops(clean, sequences), sequences)
    chosen = ids.tolist()
    logprobs = _logprobs(clean, ids, sequences)
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


def _logprobs(logits: Tensor, ids: Tensor, sequences: Seq[Sequence]) -> list[TokenLogprobs | None]:
    wanted = [sequence.request.params.logprobs for sequence in sequences]
    found: list[TokenLogprobs | None] = [None] * len(wanted)
    rows = [row for row, count in enumerate(wanted) if count is not None]
    if not rows:
        return found
    if len(rows) < len(wanted):
        picked = torch.tensor(rows, device=logits.device)
        logits, ids = logits.index_select(0, picked), ids.index_select(0, picked)
    chosen = token_logprobs(logits, ids).tolist()
    most = max(wanted[row] or 0 for row in rows)
    # Stable, so that equal logits come in the order of their ids.
    order = torch.sort(logits, dim=-1, descending=True, stable=True).indices[:, :most] if most else logits[:, :0].long()
    columns = [token_logprobs(logits, order[:, column]).tolist() for column in range(order.shape[1])]
    best = order.tolist()
    for place, row in enumerate(rows):
        count = wanted[row] or 0
        top = tuple((best[place][column], columns[column][place]) for column in range(min(count, len(columns))))
        found[row] = TokenLogprobs(chosen[place], top)
    return found
