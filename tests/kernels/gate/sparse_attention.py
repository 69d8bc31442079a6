"""Production shapes of attention by Triton: decode of Flash over packed and plain keys."""

from collections.abc import Callable, Iterator

import torch

from benthic.kernels.kv_storage import PackedKv
from benthic.kernels.kv_storage.layout import kv_bytes
from benthic.kernels.sparse_attention.kernel import attend_tiles_triton
from benthic.kernels.sparse_attention.tiles import KeyTiles

HEADS, DIM, ROPE = 64, 512, 64


def production() -> Iterator[tuple[str, Callable[[], object]]]:
    """(case, launch)."""
    for dtype in (torch.bfloat16, torch.float32):
        yield f"decode plain {dtype}".replace("torch.", ""), lambda dtype=dtype: _decode(dtype, packed=False)
    yield "decode packed bfloat16", lambda: _decode(torch.bfloat16, packed=True)


def _decode(dtype: torch.dtype, *, packed: bool) -> torch.Tensor:
    rows, on = 4, torch.device("meta")
    table = torch.empty(rows, 64, dtype=torch.int64, device=on)
    place = torch.empty(rows, dtype=torch.int64, device=on)
    tiles = KeyTiles(place, 1, place[:, None], place, place, table, 128, 128, table, 32, 1 << 16, 4, 8191)
    width = kv_bytes(DIM, ROPE, dtype, "v4") if packed else DIM
    keys = torch.empty(1 << 18, width, dtype=torch.uint8 if packed else dtype, device=on)
    query = torch.empty(rows, HEADS, DIM, dtype=dtype, device=on)
    picks = torch.empty(rows, 1, 512, dtype=torch.int32, device=on)
    kv = PackedKv(keys, DIM, ROPE, dtype, "v4") if packed else keys
    return attend_tiles_triton(query, kv, torch.empty(HEADS, device=on), tiles, DIM**-0.5, picks, DIM, 1 << 30)
