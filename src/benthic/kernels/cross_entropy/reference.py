"""log p(id) = logits[id] - logsumexp(logits), in float32."""

from torch import Tensor

from benthic.kernels.precision import wide


def token_logprobs_ref(logits: Tensor, ids: Tensor) -> Tensor:
    logits = wide(logits)
    return logits.gather(1, ids[:, None])[:, 0] - logits.logsumexp(-1)
