"""Production shapes of log-probabilities by Triton: the released vocabulary, with five alternatives and none."""

from collections.abc import Callable, Iterator

import torch

from benthic.kernels.cross_entropy.kernel import ranked_logprobs_triton

VOCAB_SIZE = 129280


def production() -> Iterator[tuple[str, Callable[[], object]]]:
    """(case, launch)."""
    logits = torch.empty(64, VOCAB_SIZE, device="meta")
    chosen = torch.empty(64, dtype=torch.int64, device="meta")
    for count in (0, 5):
        yield f"log-probabilities and {count}", lambda count=count: ranked_logprobs_triton(logits, chosen, count)
