"""Where the keys of a tile lie and which of them its rows see, as tensors: what the reference and products work on."""

from math import gcd

import torch
from torch import Tensor

from benthic.kernels.kv_storage import PackedIndex, PackedKv, unpack_index, unpack_kv
from benthic.kernels.sparse_attention.tiles import BLOCK, WINDOW_BLOCKS, KeyTiles

Keys = Tensor | PackedKv
"""A kv buffer: rows [num_slots, d], or the official format of such rows."""

IndexKeys = Tensor | PackedIndex
"""A buffer of indexer keys likewise."""

Blocks = tuple[int, int]
"""Key blocks first .. end - 1 of a tile: those of the window come first, if there are any, and block
`window_blocks` + i holds entries 64i .. 64i + 63."""


def read_blocks(keys: Keys, tiles: KeyTiles, blocks: Blocks) -> Tensor:
    """Gathers key blocks: [n, (end - first) * 64, d] in the rows' dtype."""
    before, (first, end) = tiles.window_blocks, blocks
    pages = (tiles.window_page,) if before else ()
    unit = gcd(BLOCK, *pages, *((tiles.entry_page, tiles.entry_base) if tiles.ratio else ()))
    places = [_window_slots(tiles, unit, (first, min(end, before)))] if first < before else []
    if end > before:
        listed = (max(first - before, 0), end - before)
        places.append(entry_slots(tiles, unit, listed) + (tiles.entry_base if tiles.ratio else 0))
    slots = places[0] if len(places) == 1 else torch.cat(places, dim=1)
    if isinstance(keys, PackedKv):
        data = _gather(keys.data, slots, unit)
        return unpack_kv(data.flatten(0, 1), keys.dim, keys.rope_dim, keys.dtype, keys.form).view(
            *data.shape[:2], keys.dim
        )
    return _gather(keys, slots, unit)


def read_index_blocks(keys: IndexKeys, tiles: KeyTiles, blocks: Blocks) -> Tensor:
    """Gathers blocks of indexer keys, counted without the window's: [n, (end - first) * 64, di]."""
    unit = gcd(BLOCK, tiles.entry_page)
    slots = entry_slots(tiles, unit, blocks)
    if isinstance(keys, PackedIndex):
        data = _gather(keys.data, slots, unit)
        return unpack_index(data.flatten(0, 1), keys.dim, keys.dtype, keys.form).view(*data.shape[:2], keys.dim)
    return _gather(keys, slots, unit)


def entry_slots(tiles: KeyTiles, unit: int, blocks: Blocks) -> Tensor:
    """Slot of every unit-th entry of those blocks, without `entry_base`: int64 [n, (end - first) * 64 / unit].

    Entries past the table's end take the last page: no row sees them.
    """
    first, end = blocks
    if tiles.entry_table is None:
        return tiles.sequence.new_zeros(tiles.num_tiles, (end - first) * BLOCK // unit)
    entry = torch.arange(first * BLOCK, end * BLOCK, unit, device=tiles.sequence.device)
    page = (entry // tiles.entry_page).clamp(max=tiles.entry_table.shape[1] - 1)
    return tiles.entry_table[tiles.sequence[:, None], page] * tiles.entry_page + entry % tiles.entry_page


def _window_slots(tiles: KeyTiles, unit: int, blocks: Blocks) -> Tensor:
    position = window_positions(tiles, unit, blocks).clamp(min=0)
    page = (position // tiles.window_page).clamp(max=tiles.window_table.shape[1] - 1)
    return tiles.window_table[tiles.sequence[:, None], page] * tiles.window_page + position % tiles.window_page


def window_positions(tiles: KeyTiles, unit: int, blocks: Blocks) -> Tensor:
    """Position of every unit-th key of window blocks, int64 [n, (end - first) * 64 / unit]; below 0 before a start."""
    first, end = (block - (WINDOW_BLOCKS - 1) for block in blocks)
    offset = torch.arange(first * BLOCK, end * BLOCK, unit, device=tiles.positions.device)
    return tiles.positions[:, :1] // BLOCK * BLOCK + offset


def _gather(keys: Tensor, slots: Tensor, unit: int) -> Tensor:
    width = keys.shape[-1]
    rows = keys.view(-1, unit * width).index_select(0, (slots // unit).view(-1))
    return rows.view(slots.shape[0], slots.shape[1] * unit, width)


def hidden_keys(tiles: KeyTiles, blocks: Blocks, picks: Tensor | None) -> Tensor:
    """0 where a key of those blocks is visible and picked, -inf elsewhere: float32 [n, Q, (end - first) * 64].

    `picks` int32 [n, Q, k]: entries that remain, -1 for none; None keeps all.
    """
    first, end = blocks
    if tiles.bias is None:
        bias = _visibility_bias(tiles, blocks)
    else:
        bias = tiles.bias if end - first == tiles.num_blocks else tiles.bias[..., first * BLOCK : end * BLOCK]
    before = tiles.window_blocks
    if picks is None or end <= before:
        return bias
    window = max(before - first, 0) * BLOCK
    is_picked = _picked(picks, max(first - before, 0) * BLOCK, bias.shape[-1] - window)
    entries = bias[..., window:].masked_fill(~is_picked, float("-inf"))
    return torch.cat([bias[..., :window], entries], dim=-1) if window else entries


def _picked(picks: Tensor, first_entry: int, count: int) -> Tensor:
    """Bool [n, Q, count]: which entries from `first_entry` on are among the picks."""
    place = picks.long() - first_entry
    place = torch.where((place >= 0) & (place < count), place, count)
    marks = torch.zeros(*picks.shape[:2], count + 1, dtype=torch.bool, device=picks.device)
    return marks.scatter_(-1, place, True)[..., :count]


def _visibility_bias(tiles: KeyTiles, blocks: Blocks) -> Tensor:
    before, (first, end) = tiles.window_blocks, blocks
    position = tiles.positions[:, :, None]
    visible = []
    if first < before:
        key = window_positions(tiles, 1, (first, min(end, before)))[:, None, :]
        visible.append((key >= 0) & (key <= position) & (key > position - tiles.window))
    if end > before:
        listed = (max(first - before, 0), end - before)
        entry = torch.arange(listed[0] * BLOCK, listed[1] * BLOCK, device=position.device)
        limit = (position + 1) // tiles.ratio if tiles.ratio else torch.zeros_like(position)
        visible.append(entry < limit)
    seen = torch.cat(visible, dim=-1) if len(visible) > 1 else visible[0]
    return torch.zeros(seen.shape, dtype=torch.float32, device=seen.device).masked_fill_(~seen, float("-inf"))


def visible_entries(tiles: KeyTiles) -> Tensor:
    """How many entries each query sees, int64 [n, Q]."""
    return (tiles.positions + 1) // tiles.ratio if tiles.ratio else torch.zeros_like(tiles.positions)
