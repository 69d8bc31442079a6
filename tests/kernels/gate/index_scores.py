"""Production shapes of index scores by Triton: decode of Flash over FP4, FP8 and plain keys."""

from collections.abc import Callable, Iterator
from typing import Literal

import torch

from benthic.kernels.index_scores.kernel import index_scores_triton
from benthic.kernels.kv_storage import PackedIndex
from benthic.kernels.kv_storage.layout import KeyForm, index_bytes
from benthic.kernels.sparse_attention.tiles import KeyTiles

ROWS, HEADS, DIM, BLOCKS, ON = 4, 64, 128, 512, torch.device("meta")


def production() -> Iterator[tuple[str, Callable[[], object]]]:
    """(case, launch)."""
    for form in ("plain bfloat16", "plain float32", "v4", "v3.2"):
        yield f"decode {form}", lambda form=form: _decode(form)


def _decode(form: KeyForm | Literal["plain bfloat16", "plain float32"]) -> torch.Tensor:
    dtype = torch.float32 if form == "plain float32" else torch.bfloat16
    table = torch.empty(ROWS, 1024, dtype=torch.int64, device=ON)
    place = torch.empty(ROWS, dtype=torch.int64, device=ON)
    tiles = KeyTiles(place, 1, place[:, None], place, place, table, 128, 128, table, 32, 1 << 16, 4, 131071)
    query = torch.empty(ROWS, HEADS, DIM, dtype=dtype, device=ON)
    if form == "plain bfloat16" or form == "plain float32":
        keys: torch.Tensor | PackedIndex = torch.empty(1 << 18, DIM, dtype=dtype, device=ON)
    else:
        data = torch.empty(1 << 18, index_bytes(DIM, form), dtype=torch.uint8, device=ON)
        keys = PackedIndex(data, DIM, dtype, form)
    return index_scores_triton(query, torch.empty(ROWS, HEADS, device=ON), keys, tiles, (0, BLOCKS))
