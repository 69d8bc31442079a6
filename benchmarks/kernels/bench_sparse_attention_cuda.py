"""Attention of Flash's and Pro's layers over packed keys on Hopper: the CUDA kernels, Triton's and FlashMLA in turns.

    python benchmarks/kernels/bench_sparse_attention_cuda.py [--only B128] [--out benchmarks/results/h200.jsonl]

Decode: every row a sequence of its own, a window of 128 and 512 or 1024 picks, or the 8192 entries that a million
tokens leave at ratio 128. Prefill: 8192 rows of one sequence with 512 picks each. FlashMLA reads keys of the same sizes
in its own pages (in prefill: plain bfloat16 ones) and lists of the same lengths; its bits follow the batch.
"""

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from cuda_timing import Case, main, num_sets
from torch import Tensor

from benthic.kernels.kv_storage import PackedKv, kv_bytes
from benthic.kernels.sparse_attention import KeyTiles, TilePlan, sparse_attention

DIM, ROPE, WINDOW, PAGE = 512, 64, 128, 64
SCALE = DIM**-0.5
DECODE = [(64, b, k) for k in (512, 1024) for b in (1, 8, 16, 32, 64, 128, 256)] + [(128, b, 512) for b in (1, 32, 128)]
DECODE += [(64, 1, 8192), (64, 32, 8192)]
KEY_BYTES = kv_bytes(DIM, ROPE, torch.bfloat16)


def random_keys(count: int) -> PackedKv:
    """Rows whose values are of the size of a released model's."""
    data = torch.empty(count, KEY_BYTES, dtype=torch.uint8, device="cuda")
    _fill(data[:, :448], data[:, 448:456], data[:, 456:584])
    return PackedKv(data, DIM, ROPE, torch.bfloat16)


def _fill(codes: Tensor, scales: Tensor, rotary: Tensor) -> None:
    codes.copy_(torch.randint(0, 256, codes.shape, dtype=torch.uint8, device="cuda") & 0xB7)
    scales.copy_(torch.randint(124, 128, scales.shape, dtype=torch.uint8, device="cuda"))
    values = torch.empty(*rotary.shape[:-1], ROPE, dtype=torch.bfloat16, device="cuda").normal_(0, 0.5)
    rotary.copy_(values.view(torch.uint8))


def plan(positions: Tensor, sequences: int, ratio: int, num_slots: int) -> TilePlan:
    """One row a tile; the pages of each sequence lie anywhere among those of the buffer."""
    rows, last = positions.shape[0], int(positions.max())
    place = torch.arange(rows, device="cuda")
    pages = num_slots // PAGE
    window = torch.randint(0, pages, (sequences, last // PAGE + 1), device="cuda")
    entries = torch.randint(0, pages, (sequences, (last + 1) // ratio // PAGE + 1), device="cuda")
    sequence = place % sequences
    one = torch.ones_like(place)
    tiles = KeyTiles(place, 1, positions[:, None], one, sequence, window, PAGE, WINDOW, entries, PAGE, 0, ratio, last)
    return TilePlan((tiles,), place)


def plan_of_run(positions: Tensor, ratio: int, num_slots: int) -> TilePlan:
    """A run of one sequence in tiles of 64 rows, whose pages lie anywhere in the buffer."""
    rows, last, pages = positions.shape[0], int(positions[-1]), num_slots // PAGE
    tiles, place = rows // PAGE, torch.arange(rows, device="cuda")
    window = torch.randperm(pages, device="cuda")[: last // PAGE + 1][None].contiguous()
    entries = torch.randperm(pages, device="cuda")[: (last + 1) // ratio // PAGE + 1][None].contiguous()
    used = torch.full((tiles,), PAGE, device="cuda")
    where = (positions.view(tiles, PAGE), used, torch.zeros_like(used), window, PAGE, WINDOW, entries, PAGE)
    return TilePlan((KeyTiles(place, PAGE, *where, 0, ratio, last, num_runs=1),), place)


def picks(rows: int, entries: int, k: int) -> Tensor:
    """Ascending, int32 [rows, 1, k]."""
    some = torch.rand(min(rows, 256), entries, device="cuda").topk(k).indices.sort(-1).values.int()
    return some.repeat(-(-rows // len(some)), 1)[:rows, None].contiguous()


def ours(heads: int, rows: int, k: int, keys: PackedKv, impl: str, *, prefill: bool = False) -> Callable[[], object]:
    """A call over inputs of its own."""
    ratio, start = (128, (1 << 20) - 1) if k == 8192 else (4, 8192 if prefill else 8191)
    positions = torch.full((rows,), start, device="cuda")
    if prefill:
        positions += torch.arange(rows, device="cuda")
    chosen = None if k == 8192 else picks(rows, (start + 1) // ratio, k)
    if prefill:
        assert chosen is not None, "prefill is timed with picks"
        chosen = chosen.view(-1, PAGE, k)
        where = plan_of_run(positions, ratio, len(keys.data))
    else:
        where = plan(positions, rows, ratio, len(keys.data))
    given: dict[str, Any] = {
        "query": torch.randn(rows, heads, DIM, dtype=torch.bfloat16, device="cuda"),
        "sink": torch.randn(heads, device="cuda"),
        "plan": where,
        "picks": None if chosen is None else [chosen],
    }
    return partial(sparse_attention, keys=keys, scale=SCALE, impl=impl, **given)


def flash_pages(count: int) -> Tensor:
    """Keys in FlashMLA's pages: 64 rows of 576 bytes, then their scales."""
    data = torch.empty(-(-count // PAGE), PAGE * 584, dtype=torch.uint8, device="cuda")
    rows = data[:, : PAGE * 576].view(-1, PAGE, 576)
    _fill(rows[..., :448], data[:, PAGE * 576 :].view(-1, PAGE, 8), rows[..., 448:])
    return data.view(-1, PAGE, 1, 584)


def flash_decode(heads: int, rows: int, k: int, window: Tensor, entries: Tensor) -> Callable[[], object]:
    """FlashMLA's call of the same size."""
    import flash_mla

    def listed(pages: Tensor, count: int) -> Tensor:
        return torch.randint(0, len(pages) * PAGE, (rows, 1, count), dtype=torch.int32, device="cuda").sort(-1).values

    query = torch.randn(rows, 1, heads, DIM, dtype=torch.bfloat16, device="cuda")
    call = partial(
        flash_mla.flash_mla_with_kvcache,
        *(query, window, None, None, DIM, flash_mla.get_mla_metadata()[0]),
        softmax_scale=SCALE,
        indices=listed(window, WINDOW),
        attn_sink=torch.randn(heads, device="cuda"),
        extra_k_cache=entries,
        extra_indices_in_kvcache=listed(entries, k),
        use_legacy=True,
        kv_format="V4",
    )
    call()
    return call


def flash_prefill(rows: int, k: int) -> Callable[[], object]:
    """FlashMLA's sparse prefill over plain keys."""
    import flash_mla

    keys = torch.randn(rows + rows // 4, 1, DIM, dtype=torch.bfloat16, device="cuda")
    query = torch.randn(rows, 64, DIM, dtype=torch.bfloat16, device="cuda")
    chosen = torch.randint(0, len(keys), (rows, 1, k), dtype=torch.int32, device="cuda").sort(-1).values
    sink = torch.randn(64, device="cuda")
    return lambda: flash_mla.flash_mla_sparse_fwd(query, keys, chosen, SCALE, DIM, sink, None, use_legacy=True)


def cases() -> Iterator[Case]:
    """Decode of every size, then prefill."""
    has_flash = find_spec("flash_mla") is not None
    for heads, rows, k in DECODE:
        length = WINDOW + k
        count = max(2, num_sets(rows * length * KEY_BYTES, 16))
        keys = random_keys(max(rows, 32) * (192 + max(k, 2048)))
        calls = {impl: [ours(heads, rows, k, keys, impl) for _ in range(count)] for impl in ("cuda", "triton")}
        if has_flash:
            window, entries = flash_pages(rows * 256), flash_pages(rows * max(k, 2048))
            calls["flashmla"] = [flash_decode(heads, rows, k, window, entries) for _ in range(count)]
        num_bytes = rows * length * 584 + 4 * rows * heads * DIM
        yield Case(f"H{heads} B{rows} L{length}", calls, num_bytes, 4 * rows * heads * DIM * length)
    rows, k = 8192, 512
    calls = {"cuda": [ours(64, rows, k, random_keys(1 << 15), "cuda", prefill=True)]}
    if has_flash:
        calls["flashmla"] = [flash_prefill(rows, WINDOW + k)]
    yield Case("prefill 8192 x 640", calls, 4 * rows * 64 * DIM, 4 * rows * 64 * DIM * (WINDOW + k))


if __name__ == "__main__":
    main("sparse_attention", cases)
