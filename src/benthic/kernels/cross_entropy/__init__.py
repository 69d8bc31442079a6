"""Log-probabilities of given and of the most likely tokens, and the loss made of them without keeping logits."""

from benthic.kernels.cross_entropy.op import RankedLogprobs, linear_cross_entropy, ranked_logprobs, token_logprobs

__all__ = ["RankedLogprobs", "linear_cross_entropy", "ranked_logprobs", "token_logprobs"]
