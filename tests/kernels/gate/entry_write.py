"""Production shapes of the entry epilogues by Triton: Flash and Pro, official and plain storage."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from benthic.kernels.entry_write.compress_kernel import compress_entries_triton
from benthic.kernels.entry_write.kernel import query_heads_triton, write_kv_triton
from benthic.kernels.entry_write.targets import BlockEnds, CompressorSide, RawState, RowTarget
from benthic.kernels.kv_storage.layout import index_bytes, kv_bytes
from benthic.kernels.rope import RopeTable

ROWS, DIM, ROPE, INDEX_HEADS, INDEX_DIM = 4, 512, 64, 64, 128
MODELS = {"flash": (1024, 64), "pro": (1536, 128)}
"""Rank of the latent, heads."""


def production() -> Iterator[tuple[str, Callable[[], object]]]:
    """(case, launch)."""
    for name, (rank, heads) in MODELS.items():
        for is_packed in (True, False):
            yield f"write_kv {name} {'packed' if is_packed else 'plain'}", partial(_write_kv, rank, is_packed)
        yield f"query_heads {name}", partial(_query_heads, heads, INDEX_HEADS)
        yield f"query_heads {name} without indexer", partial(_query_heads, heads, 0)
    for ratio in (4, 128):
        for is_packed in (True, False):
            for by_rows in (True, False):
                case = f"compress {ratio} {'packed' if is_packed else 'plain'} {'chunks' if by_rows else 'blocks'}"
                yield case, partial(_compress, ratio, is_packed, by_rows)


def _meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def _rope() -> RopeTable:
    return RopeTable(_meta(ROWS, ROPE // 2), _meta(ROWS, ROPE // 2))


def _kv(is_packed: bool) -> Tensor:
    if is_packed:
        return _meta(64, kv_bytes(DIM, ROPE, torch.bfloat16), dtype=torch.uint8)
    return _meta(64, DIM, dtype=torch.bfloat16)


def _index(is_packed: bool) -> Tensor:
    if is_packed:
        return _meta(64, index_bytes(INDEX_DIM), dtype=torch.uint8)
    return _meta(64, INDEX_DIM, dtype=torch.bfloat16)


def _write_kv(rank: int, is_packed: bool) -> object:
    target = RowTarget(_kv(is_packed), _meta(ROWS, dtype=torch.int64), "v4" if is_packed else None)
    product = _meta(ROWS, rank + DIM, dtype=torch.bfloat16)
    return write_kv_triton(product, _meta(rank), _meta(DIM), _rope(), target, 1e-6, 64, True)


def _query_heads(heads: int, index_heads: int) -> object:
    product = _meta(ROWS, heads * DIM + index_heads * INDEX_DIM, dtype=torch.bfloat16)
    return query_heads_triton(product, heads, DIM, _rope(), 1e-6, index_heads, True)


def _compress(ratio: int, is_packed: bool, by_rows: bool) -> None:
    series, form = (2, "v4") if ratio == 4 else (1, "v4")
    dims = (DIM, INDEX_DIM) if ratio == 4 else (DIM,)
    width, number = sum(2 * series * dim for dim in dims), torch.int64
    per_row = [_meta(ROWS, dtype=number) for _ in range(6)]
    ends = BlockEnds(ratio, 2 * ratio, *per_row[:4], *per_row[4:], _rope(), by_rows)
    sides = tuple(
        CompressorSide(_meta(ratio, series * dim), _meta(dim), buffer, form if is_packed else None)
        for dim, buffer in zip(dims, (_kv(is_packed), _index(is_packed)), strict=False)
    )
    state = RawState(_meta(64, width), _meta(64, width // 2))
    raw = _meta(ROWS, width)
    compress_entries_triton(raw, state, ends, sides, 1e-6, 64, True, torch.bfloat16)
