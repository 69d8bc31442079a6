"""Log-probabilities of given tokens, and the loss made of them without keeping logits."""

from benthic.kernels.cross_entropy.op import linear_cross_entropy, token_logprobs

__all__ = ["linear_cross_entropy", "token_logprobs"]
