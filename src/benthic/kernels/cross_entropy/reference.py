"""log p(id) = logits[id] - logsumexp(logits), in float32."""

from torch import Tensor

from benthic.kernels.precision import wide


def token_logprobs_ref(logits: Tensor, ids: Tensor) -> Tensor:
    logits = wide(logits)
    values = logits.gather(1, ids if ids.dim() == 2 else ids[:, None]) - logits.logsumexp(-1, keepdim=True)
    return values if ids.dim() == 2 else values[:, 0]
