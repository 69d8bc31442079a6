"""Which entries a group of tiles keeps: scores in pieces, and a running top-k over the pieces.

The best k of all are the best k of (best k so far, next piece). Those so far come first and in order of index, so
that ties still go to the lower index and the set is that of `select_topk` on all scores at once.
"""

import torch
from torch import Tensor

from benthic.kernels.choice import Impl
from benthic.kernels.index_scores.cuda import takes_cuda, write_visible_scores
from benthic.kernels.index_scores.op import index_scores
from benthic.kernels.kv_storage import PackedIndex
from benthic.kernels.select_topk import select_topk
from benthic.kernels.select_topk.cuda import Visible, select_topk_cuda
from benthic.kernels.sparse_attention.addresses import IndexKeys, visible_entries
from benthic.kernels.sparse_attention.tiles import BLOCK, KeyTiles
from benthic.kernels.sparse_attention.workspace import DEFAULT_WORKSPACE_BYTES, index_block_bytes, portion


@torch.no_grad()
def pick_entries(
    query: Tensor,
    gamma: Tensor,
    keys: IndexKeys,
    tiles: KeyTiles,
    k: int,
    *,
    gamma_scale: float = 1.0,
    min_rows: int = 1,
    workspace_bytes: int = DEFAULT_WORKSPACE_BYTES,
    impl: Impl = "auto",
) -> Tensor:
    """The k entries with the best index scores for each query; arguments as in `index_scores`.

    Args:
        k: how many to keep, at least 1.
        workspace_bytes: bound of the temporaries that grow with the context. Never a matter of bits.

    Returns:
        int32 [n, Q, min(k, entry blocks * 64)]: entries, ascending; -1 fills the end where fewer are visible.
    """
    if takes_cuda(impl, query, keys, tiles):
        assert isinstance(keys, PackedIndex), "the kernel takes no other keys"
        per_tile = 4 * tiles.rows_per_tile * tiles.num_entry_blocks * BLOCK
        if per_tile <= workspace_bytes:
            at_once = max(1, workspace_bytes // max(per_tile, 1))
            return _pick_on_device(query, gamma, keys, tiles, k, at_once, gamma_scale)
    _, heads, dim = query.shape
    block_bytes = index_block_bytes(tiles.rows_per_tile, max(heads, min_rows), dim)
    cut = portion(tiles.num_tiles, tiles.num_entry_blocks, block_bytes, workspace_bytes)
    parts = []
    for first in range(0, tiles.num_tiles, cut.num_tiles):
        some = tiles.part(first, first + cut.num_tiles)
        best: tuple[Tensor, Tensor] | None = None
        for block in range(0, tiles.num_entry_blocks, cut.num_blocks):
            piece = (block, min(block + cut.num_blocks, tiles.num_entry_blocks))
            scores = index_scores(
                query, gamma, keys, some, piece, gamma_scale=gamma_scale, min_rows=min_rows, impl=impl
            )
            if cut.num_blocks >= tiles.num_entry_blocks:
                parts.append(select_topk(scores, k, impl=impl))
                break
            best = _merge(best, scores, block * BLOCK, k, impl)
        else:
            assert best is not None, "a group lists at least one block of entries"
            parts.append(best[1])
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _pick_on_device(
    query: Tensor,
    gamma: Tensor,
    keys: PackedIndex,
    tiles: KeyTiles,
    k: int,
    tiles_at_once: int,
    gamma_scale: float,
) -> Tensor:
    """`pick_entries` in two launches for each run of so many tiles; only visible scores are written and read."""
    whole, parts = (0, tiles.num_entry_blocks), []
    for first in range(0, tiles.num_tiles, tiles_at_once):
        some = tiles.part(first, first + tiles_at_once)
        scores = torch.empty(some.num_tiles, some.rows_per_tile, whole[1] * BLOCK, device=query.device)
        write_visible_scores(query, gamma, keys, some, whole, scores, gamma_scale)
        visible = Visible(some.positions, some.used, some.rows_per_tile, some.ratio)
        parts.append(select_topk_cuda(scores, k, visible))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def all_visible(tiles: KeyTiles, k: int) -> Tensor:
    """What `pick_entries` gives where no query sees more than k entries: int32 [n, Q, k]."""
    entry = torch.arange(k, dtype=torch.int32, device=tiles.positions.device)
    return torch.where(entry < visible_entries(tiles)[..., None], entry, -1)


def _merge(
    best: tuple[Tensor, Tensor] | None, scores: Tensor, first_entry: int, k: int, impl: Impl
) -> tuple[Tensor, Tensor]:
    """(scores, entries) of the best k among those so far and a piece that starts at `first_entry`."""
    if best is not None:
        scores = torch.cat([best[0], scores], dim=-1)
    place = select_topk(scores, k, impl=impl)
    is_picked = place >= 0
    known = 0 if best is None else best[1].shape[-1]
    entries = place + (first_entry - known)
    if best is not None:
        carried = best[1].gather(-1, place.clamp(0, known - 1).long())
        entries = torch.where(place < known, carried, entries)
    kept_scores = scores.gather(-1, place.clamp(min=0).long()).masked_fill(~is_picked, -torch.inf)
    return kept_scores, entries.masked_fill(~is_picked, -1)
