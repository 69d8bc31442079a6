"""The door of index scores."""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, uses_cpu_kernel, uses_triton_kernel
from benthic.kernels.index_scores.cuda import index_scores_cuda, takes_cuda
from benthic.kernels.index_scores.reference import index_scores_ref
from benthic.kernels.kv_storage import PackedIndex
from benthic.kernels.product_rows import fewest_product_rows
from benthic.kernels.reference_gradient import with_reference_gradient
from benthic.kernels.sparse_attention.addresses import Blocks, IndexKeys
from benthic.kernels.sparse_attention.tiles import KeyTiles


def index_scores(
    query: Tensor,
    gamma: Tensor,
    keys: IndexKeys,
    tiles: KeyTiles,
    blocks: Blocks | None = None,
    *,
    gamma_scale: float = 1.0,
    min_rows: int = 1,
    impl: Impl = "auto",
) -> Tensor:
    """Scores every entry that a group of tiles may read.

    Args:
        query: [R, Hi, di] indexer queries, rotated.
        gamma: float32 [R, Hi] head weights; may be negative.
        keys: [num_slots, di] indexer keys, contiguous, whole pages, finite everywhere; or such keys in the official
            format, which are widened as they are read and have no gradient.
        tiles: the group; its ratio must not be 0.
        blocks: (first, end) blocks of 64 entries to score; None for all of them.
        gamma_scale: what head weights are multiplied by first, rounded once; di^-0.5 * Hi^-0.5 where they are not yet.
        min_rows: rows that a product needs to be exact on this machine; fewer heads are filled up with silent ones.

    Returns:
        float32 [n, Q, (end - first) * 64], -inf where the entry is not visible.
    """
    if gamma.shape != query.shape[:2]:
        raise KernelInputError(f"gamma has shape {tuple(gamma.shape)}; it must be {tuple(query.shape[:2])}")
    blocks = (0, tiles.num_entry_blocks) if blocks is None else blocks
    if takes_cuda(impl, query, keys, tiles):
        assert isinstance(keys, PackedIndex), "the kernel takes no other keys"
        return index_scores_cuda(query, gamma, keys, tiles, blocks, gamma_scale)
    takes_triton = uses_triton_kernel(impl, query) and keys.dtype is query.dtype
    if takes_triton and not torch.is_grad_enabled():
        return _triton()(query, gamma, keys, tiles, blocks, gamma_scale=gamma_scale)
    gamma = gamma if gamma_scale == 1.0 else gamma * gamma_scale
    if takes_triton:
        return _compiled(_triton(), query, gamma, keys, tiles, blocks)
    is_compiled = uses_cpu_kernel(impl, query)
    if is_compiled and takes_chains(query, keys, tiles):
        return _compiled(_chains(), query, gamma, keys, tiles, blocks)
    if query.is_cpu:
        min_rows = max(min_rows, fewest_product_rows(query.shape[2], torch.get_num_threads()))
    missing = min_rows - query.shape[1]
    if missing > 0:
        query, gamma = F.pad(query, (0, 0, 0, missing)), F.pad(gamma, (0, missing))
    if not is_compiled:
        return index_scores_ref(query, gamma, keys, tiles, blocks)
    return _compiled(_cpu(), query, gamma, keys, tiles, blocks)


def _compiled(
    kernel: Callable[..., Tensor], query: Tensor, gamma: Tensor, keys: IndexKeys, tiles: KeyTiles, blocks: Blocks
) -> Tensor:
    if isinstance(keys, PackedIndex):
        return kernel(query, gamma, keys, tiles, blocks)
    scores: Tensor = with_reference_gradient(kernel, index_scores_ref, (query, gamma, keys), tiles, blocks)
    return scores


def takes_chains(query: Tensor, keys: IndexKeys, tiles: KeyTiles) -> bool:
    """True if the CPU kernel scores these tiles without products, see `single_rows_cpu`."""
    is_plain = query.dtype is torch.float32 and keys.dtype is torch.float32
    return tiles.rows_per_tile == 1 and is_plain and chains_agree_here(query.shape[2])


def chains_agree_here(dim: int) -> bool:
    """True if single rows may be scored by chains on this machine."""
    from benthic.kernels.sparse_attention.chains_cpu import chain_len

    return chain_len(dim, torch.get_num_threads()) > 0


@cache
def _triton() -> Callable[..., Tensor]:
    from benthic.kernels.index_scores.kernel import index_scores_triton

    return index_scores_triton


@cache
def _cpu() -> Callable[..., Tensor]:
    from benthic.kernels.index_scores.cpu import index_scores_cpu

    return index_scores_cpu


@cache
def _chains() -> Callable[..., Tensor]:
    from benthic.kernels.index_scores.single_rows_cpu import index_single_rows

    return index_single_rows
