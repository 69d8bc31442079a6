"""Production shapes of pooling by Triton: Flash's entries of both ratios and its indexer keys."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benthic.kernels.compress_kv.kernel import compress_kv_triton


def production() -> Iterator[tuple[str, Callable[[], object]]]:
    """(case, launch)."""
    for ratio, dim in ((4, 512), (4, 128), (128, 512)):
        yield f"pool {ratio} rows of {dim}", lambda ratio=ratio, dim=dim: _pool(ratio, dim)


def _pool(ratio: int, dim: int) -> Tensor:
    series, reach = (2 * dim, 8) if ratio == 4 else (dim, ratio)
    raw, ape = torch.empty(64, 2 * series, device="meta"), torch.empty(ratio, series, device="meta")
    sources = torch.empty(3, reach, dtype=torch.int64, device="meta")
    return compress_kv_triton(raw, ape, sources, None, dim)
