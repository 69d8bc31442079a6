"""What follows the input products of a Flash layer on a GPU, beside the operations one by one (`cuda_timing`).

Official storage (584-byte kv rows, 68-byte indexer keys), bfloat16 activations. Decode: every row is a sequence of its
own at a random position; prefill: one sequence from its start. Bytes are those that must move once.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from cuda_timing import Case, main, num_sets

from benthic.kernels.choice import Impl
from benthic.kernels.entry_write import CompressorSide, RawState, compress_entries, query_heads, write_kv
from benthic.kernels.entry_write.cases import (
    Fed,
    block_ends,
    index_buffer,
    kv_buffer,
    query_heads_inputs,
    write_kv_inputs,
)

DIM, ROPE, RANK, HEADS, INDEX_HEADS, INDEX_DIM = 512, 64, 1024, 64, 64, 128
DECODE, PREFILL = (1, 32, 128), (4096, 32768)
SLOTS = 1 << 14
HALF = torch.bfloat16


def cases() -> Iterator[Case]:
    for rows in (*DECODE, *PREFILL):
        yield _write_kv(rows)
        yield _query_heads(rows)
    for ratio in (4, 128):
        for rows in (*DECODE, *PREFILL):
            yield _compress(ratio, rows, is_decode=rows in DECODE)


def _case(name: str, calls: list[Callable[..., object]], moved: int, impls: tuple[Impl, ...] = ("triton",)) -> Case:
    """The reference waits for the host, so it is no part of a graph where slots may be missing."""
    return Case(name, {impl: [partial(call, impl=impl) for call in calls] for impl in impls}, moved)


def _write_kv(rows: int) -> Case:
    moved = rows * (2 * (RANK + DIM) + RANK + RANK // 32 + 584 + ROPE * 4)
    sets = [
        write_kv_inputs(rows, HALF, rank=RANK, dim=DIM, rope_dim=ROPE, form="v4") for _ in range(num_sets(moved, 40))
    ]
    calls = [partial(write_kv, **given, kv_group=64, linear_scale="ue8m0") for given in sets]
    return _case(f"write_kv {rows}", calls, moved)


def _query_heads(rows: int) -> Case:
    moved = rows * 4 * (HEADS * DIM + INDEX_HEADS * INDEX_DIM)
    shape = {"heads": HEADS, "dim": DIM, "rope_dim": ROPE, "index_heads": INDEX_HEADS, "index_dim": INDEX_DIM}
    sets = [query_heads_inputs(rows, HALF, **shape) for _ in range(num_sets(moved, 40))]
    calls = [partial(query_heads, **given, index_rounding="fp4") for given in sets]
    return _case(f"query_heads {rows}", calls, moved, ("triton", "reference") if rows < 32768 else ("triton",))


def _compress(ratio: int, rows: int, *, is_decode: bool) -> Case:
    made = [_compression(ratio, rows, is_decode) for _ in range(8 if is_decode else 1)]
    width = made[0][0]["raw"].shape[1]
    blocks = sum(count for _, count in made) / len(made)
    # In decode the rows that blocks need come from the ring, and each row is kept there.
    moved = int(blocks * (ratio * width * 4 + 660) + (rows * width * 8 if is_decode else 0))
    calls = [partial(compress_entries, **given) for given, _ in made]
    impls: tuple[Impl, ...] = ("cuda", "triton") if ratio == 128 else ("triton",)
    return _case(f"compress {ratio} {rows} ({blocks:.0f} blocks)", calls, moved, impls)


def _compression(ratio: int, rows: int, is_decode: bool) -> tuple[dict[str, Any], int]:
    """Arguments of `compress_entries`, and how many blocks end."""
    fed = [Fed(0, 0, rows)]
    if is_decode:
        fed = [Fed(row, position, 1) for row, position in enumerate(torch.randint(0, 4000, (rows,)).tolist())]
    series, dims = (2, (DIM, INDEX_DIM)) if ratio == 4 else (1, (DIM,))
    width, ring_len = sum(2 * series * dim for dim in dims), 8 if ratio == 4 else 128
    entries = torch.arange(SLOTS).expand(len(fed), -1)
    ends = block_ends(ratio, ring_len, fed, entries, ROPE, by_rows=is_decode)
    if ends.snapshots is not None:
        ends = ends._replace(snapshots=torch.where(ends.snapshots >= 0, ends.snapshots % 4096, -1))
    buffers = (kv_buffer(SLOTS, DIM, ROPE, HALF, "v4"), index_buffer(SLOTS, INDEX_DIM, HALF, "v4"))
    sides = tuple(
        CompressorSide(torch.randn(ratio, series * dim), torch.ones(dim), buffer, "v4")
        for dim, buffer in zip(dims, buffers, strict=False)
    )
    state = RawState(torch.randn(len(fed) * ring_len, width), torch.zeros(4096, width // 2) if ratio == 4 else None)
    given = {"raw": torch.randn(rows, width), "state": state, "ends": ends, "sides": sides}
    options = {"eps": 1e-6, "kv_group": 64, "index_rounding": "fp4", "dtype": HALF}
    return given | options, int((ends.ends >= 0).sum())


if __name__ == "__main__":
    with torch.device("cuda"):  # inputs are made where they are used: on the host it takes minutes
        main("entry_write", cases)
