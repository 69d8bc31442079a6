"""Inputs of the indexer's kernels on a device, at the released models' sizes."""

import torch
from torch import Tensor

from benthic.formats import ScaleFormat
from benthic.kernels.kv_storage import KeyForm, PackedIndex, index_bytes
from benthic.kernels.quantize import round_trip_fp4, round_trip_fp8
from benthic.kernels.sparse_attention.tiles import KeyTiles

HEADS, DIM = 64, 128
SCALE: ScaleFormat = "ue8m0"


def device_queries(rows: int, form: KeyForm, device: str = "cuda") -> tuple[Tensor, Tensor]:
    """bfloat16 queries [rows, 64, 128], rounded as the model rounds them, and float32 gamma [rows, 64]."""
    query = torch.randn(rows, HEADS, DIM, device=device)
    query = round_trip_fp4(query, 32) if form == "v4" else round_trip_fp8(query, DIM, SCALE)
    return query.to(torch.bfloat16), torch.randn(rows, HEADS, device=device)


def device_keys(num_slots: int, form: KeyForm, device: str = "cuda") -> PackedIndex:
    """Random codes under scales like those of a model's keys, which differ by a few powers of two."""
    data = torch.randint(0, 256, (num_slots, index_bytes(DIM, form)), dtype=torch.uint8, device=device)
    if form == "v4":
        data[:, DIM // 2 :] = torch.randint(119, 123, (num_slots, 4), dtype=torch.uint8, device=device)
    else:
        data[:, :DIM] &= 0xB7
        data[:, DIM:].view(torch.float32).fill_(2.0**-6)
    return PackedIndex(data, DIM, torch.bfloat16, form)


def device_tiles(rows: int, per_tile: int, entries: int, table: Tensor, page: int) -> KeyTiles:
    """Rows that all see so many entries, of a ratio of 4: tile i belongs to sequence i, or all to the only one."""
    tiles, on, last = rows // per_tile, table.device, 4 * entries - 1
    sequence = torch.arange(tiles, device=on) if len(table) > 1 else torch.zeros(tiles, dtype=torch.int64, device=on)
    return KeyTiles(
        queries=torch.arange(rows, device=on),
        rows_per_tile=per_tile,
        positions=torch.full((tiles, per_tile), last, device=on),
        used=torch.full((tiles,), per_tile, device=on),
        sequence=sequence,
        window_table=table,
        window_page=page,
        window=128,
        entry_table=table,
        entry_page=page,
        entry_base=0,
        ratio=4,
        last_position=last,
    )
