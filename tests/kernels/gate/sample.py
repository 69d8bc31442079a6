"""Production shapes of sampling by Triton: the released vocabulary, with and without cuts."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benthic.kernels.sample.kernel import sample_triton
from benthic.kernels.sample.reference import Cuts

VOCAB_SIZE = 129280


def production() -> Iterator[tuple[str, Callable[[], object]]]:
    """(case, launch)."""
    yield "sample plain", lambda: _sample(cuts=False)
    yield "sample cut", lambda: _sample(cuts=True)


def _sample(*, cuts: bool) -> Tensor:
    def empty(dtype: torch.dtype) -> Tensor:
        return torch.empty(64, dtype=dtype, device="meta")

    share, number = empty(torch.float32), empty(torch.int64)
    logits = torch.empty(64, VOCAB_SIZE, device="meta")
    return sample_triton(logits, share, Cuts(number, share, share) if cuts else None, number, number)
