"""log p(id) = logits[id] - logsumexp(logits), in float32."""

from typing import NamedTuple

import torch
from torch import Tensor

from benthic.kernels.precision import wide


class RankedLogprobs(NamedTuple):
    """Natural log-probabilities of R rows: float32 chosen [R], int64 top_ids [R, K], float32 top [R, K], best first."""

    chosen: Tensor
    top_ids: Tensor
    top: Tensor


def token_logprobs_ref(logits: Tensor, ids: Tensor) -> Tensor:
    logits = wide(logits)
    values = logits.gather(1, ids if ids.dim() == 2 else ids[:, None]) - logits.logsumexp(-1, keepdim=True)
    return values if ids.dim() == 2 else values[:, 0]


def ranked_logprobs_ref(logits: Tensor, chosen: Tensor, num_top: int) -> RankedLogprobs:
    best = most_likely(logits, num_top)
    values = token_logprobs_ref(logits, torch.cat([chosen[:, None], best], dim=1))
    return RankedLogprobs(values[:, 0], best, values[:, 1:])


def most_likely(logits: Tensor, count: int) -> Tensor:
    """Ids of the largest logits of each row, int64 [R, count], largest first, equals by lower id.

    float32 values have the order of their bits, the lower 31 of which are turned round below zero. Put before the
    id they make 64-bit integers that are all different, so that no implementation has a choice.
    """
    bits = (logits + 0.0).view(torch.int32)  # -0 becomes 0
    rank = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
    order = (rank << 32) + torch.arange(logits.shape[1] - 1, -1, -1, device=logits.device)
    return torch.topk(order, count).indices
