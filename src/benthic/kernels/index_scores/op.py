"""The door of index scores."""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, uses_cpu_kernel
from benthic.kernels.index_scores.reference import index_scores_ref
from benthic.kernels.product_rows import fewest_product_rows
from benthic.kernels.reference_gradient import with_reference_gradient
from benthic.kernels.sparse_attention.tiles import KeyTiles


def index_scores(
    query: Tensor, gamma: Tensor, keys: Tensor, tiles: KeyTiles, *, min_rows: int = 1, impl: Impl = "auto"
) -> Tensor:
    """Scores every entry that a group of tiles may read.

    Args:
        query: [R, Hi, di] indexer queries, rotated.
        gamma: float32 [R, Hi] head weights, already times di^-0.5 * Hi^-0.5; may be negative.
        keys: [num_slots, di] indexer keys, num_slots a multiple of 64.
        tiles: the group; must have entry blocks.
        min_rows: rows that a product needs to be exact on this machine; fewer heads are filled up with silent ones.

    Returns:
        float32 [n, Q, entry blocks * 64], -inf where the entry is not visible.
    """
    if gamma.shape != query.shape[:2]:
        raise KernelInputError(f"gamma has shape {tuple(gamma.shape)}; it must be {tuple(query.shape[:2])}")
    if query.is_cpu:
        min_rows = max(min_rows, fewest_product_rows(query.shape[2], torch.get_num_threads()))
    missing = min_rows - query.shape[1]
    if missing > 0:
        query, gamma = F.pad(query, (0, 0, 0, missing)), F.pad(gamma, (0, missing))
    if not uses_cpu_kernel(impl, query):
        return index_scores_ref(query, gamma, keys, tiles)
    scores: Tensor = with_reference_gradient(_cpu(), index_scores_ref, (query, gamma, keys), tiles)
    return scores


@cache
def _cpu() -> Callable[..., Tensor]:
    from benthic.kernels.index_scores.cpu import index_scores_cpu

    return index_scores_cpu
