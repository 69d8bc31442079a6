"""Production shapes of the permutation of picks and of their sum: 128 rows of Flash to six experts each."""

from collections.abc import Callable, Iterator

import torch

from benthic.kernels.moe_permute.kernel import moe_combine_triton, moe_permute_triton

ROWS, TOP_K, EXPERTS, HIDDEN, ON = 128, 6, 256, 4096, torch.device("meta")


def production() -> Iterator[tuple[str, Callable[[], object]]]:
    """(case, launch)."""
    yield "permute", lambda: moe_permute_triton(torch.empty(ROWS, TOP_K, dtype=torch.int64, device=ON), EXPERTS)
    yield "combine", _combine


def _combine() -> torch.Tensor:
    y = torch.empty(ROWS * TOP_K, HIDDEN, dtype=torch.bfloat16, device=ON)
    return moe_combine_triton(y, None, torch.empty(ROWS, TOP_K, dtype=torch.int64, device=ON))
