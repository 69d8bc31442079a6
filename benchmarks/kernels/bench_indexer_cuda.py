"""Index scores and top-k at V4's sizes on CUDA, beside DeepGEMM's FP8 logits and torch.topk; see cuda_timing.

    python benchmarks/kernels/bench_indexer_cuda.py [--only words] [--out benchmarks/results/h200.jsonl]

Decode: one row of each sequence, keys in shuffled pages of 64, with FP4 keys (68 bytes) and FP8 keys (132); DeepGEMM
has FP8 keys alone, and is given queries that are FP8 already, where ours are bfloat16. Prefill: tiles of 64 rows that
see the same keys. Picks: scores and selection together, as a layer asks for them.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec

import torch
from cuda_timing import Case, main, num_sets
from torch import Tensor

from benthic.kernels.index_scores import pick_entries
from benthic.kernels.index_scores.cases import device_keys, device_queries, device_tiles
from benthic.kernels.index_scores.cuda import write_visible_scores
from benthic.kernels.kv_storage import KeyForm, PackedIndex
from benthic.kernels.select_topk import select_topk
from benthic.kernels.sparse_attention.tiles import KeyTiles

HEADS, DIM, RATIO, PAGE, TOP_K = 64, 128, 4, 64, 512
DECODE = ((1, 32768), (32, 32768), (128, 32768), (1, 1048576), (32, 131072))
"""(rows, context in tokens)"""
PREFILL = ((8192, 2048), (8192, 8192), (8192, 32768))
"""(queries, keys)"""
SELECT = ((1, 8192), (128, 8192), (1, 262144), (32, 32768))
"""(rows, scores)"""
FORMS: Mapping[str, KeyForm] = {"benthic fp4": "v4", "benthic fp8": "v3.2"}


def cases() -> Iterator[Case]:
    """Selection, decode, prefill."""
    for rows, width in SELECT:
        scores = [torch.randn(rows, width, device="cuda") for _ in range(num_sets(4 * rows * width, 16))]
        calls = {
            "benthic": [partial(select_topk, one, TOP_K) for one in scores],
            "torch.topk": [partial(torch.topk, one, TOP_K, dim=-1, sorted=False) for one in scores],
        }
        yield Case(f"top-k {TOP_K} of {rows} x {width}", calls, 4 * rows * (width + TOP_K))
    for rows, context in DECODE:
        yield _decode(rows, context)
    for rows, context in DECODE:
        yield _decode_picks(rows, context)
    for rows, entries in PREFILL:
        yield _prefill(rows, entries)


def _scores(query: Tensor, gamma: Tensor, keys: PackedIndex, tiles: KeyTiles, out: Tensor) -> Callable[[], object]:
    return partial(write_visible_scores, query, gamma, keys, tiles, (0, tiles.num_entry_blocks), out)


def _decode(rows: int, context: int) -> Case:
    """One row of each sequence; sets of pages of one buffer in turns."""
    entries = context // RATIO
    sets = num_sets(rows * entries * 68, 128)
    query, gamma = device_queries(rows, "v4")
    tables = torch.randperm(sets * rows * entries // PAGE, device="cuda").view(sets, rows, -1)
    calls: dict[str, list[Callable[[], object]]] = {}
    for name, form in FORMS.items():
        keys, calls[name] = device_keys(sets * rows * entries, form), []
        for table in tables:
            tiles = device_tiles(rows, 1, entries, table, PAGE)
            out = torch.empty(rows, 1, 64 * tiles.num_entry_blocks, device="cuda")
            calls[name].append(_scores(query, gamma, keys, tiles, out))
    if find_spec("deep_gemm") is not None:
        calls["DeepGEMM fp8"] = _deep_gemm_paged(rows, entries, tables, gamma)
    return Case(f"decode {rows} x {context}", calls, rows * entries * (68 + 4), 2 * rows * entries * HEADS * DIM, "fp8")


def _decode_picks(rows: int, context: int) -> Case:
    """Scores and selection by one call of the door."""
    entries = context // RATIO
    sets = num_sets(rows * entries * 68, 64)
    query, gamma = device_queries(rows, "v4")
    tables = torch.randperm(sets * rows * entries // PAGE, device="cuda").view(sets, rows, -1)
    keys = device_keys(sets * rows * entries, "v4")
    tiles = [device_tiles(rows, 1, entries, table, PAGE) for table in tables]
    calls = {"benthic": [partial(pick_entries, query, gamma, keys, one, TOP_K) for one in tiles]}
    return Case(f"picks {rows} x {context}", calls, rows * entries * (68 + 8), 2 * rows * entries * HEADS * DIM, "fp8")


def _prefill(rows: int, entries: int) -> Case:
    query, gamma = device_queries(rows, "v4")
    table = torch.randperm(entries // PAGE, device="cuda").view(1, -1)
    tiles = device_tiles(rows, 64, entries, table, PAGE)
    out = torch.empty(rows // 64, 64, 64 * tiles.num_entry_blocks, device="cuda")
    calls: dict[str, list[Callable[[], object]]] = {
        name: [_scores(query, gamma, device_keys(entries, form), tiles, out)] for name, form in FORMS.items()
    }
    if find_spec("deep_gemm") is not None:
        calls["DeepGEMM fp8"] = [_deep_gemm_shared(rows, entries, gamma)]
    num_bytes = rows * (2 * HEADS * DIM + 4 * entries) + entries * 68
    return Case(f"prefill {rows} x {entries}", calls, num_bytes, 2 * rows * entries * HEADS * DIM, "fp8")


def _deep_gemm_paged(rows: int, entries: int, tables: Tensor, gamma: Tensor) -> list[Callable[[], object]]:
    """DeepGEMM's decode: pages of 64 codes rows and their scales after them."""
    import deep_gemm

    pages = tables.numel()
    keys = torch.randint(0, 256, (pages, PAGE * 132), dtype=torch.uint8, device="cuda") & 0xB7
    keys[:, PAGE * 128 :].view(torch.float32).fill_(0.01)
    keys = keys.view(pages, PAGE, 1, 132)
    query = torch.randn(rows, 1, HEADS, DIM, device="cuda").to(torch.float8_e4m3fn)
    lengths = torch.full((rows, 1), entries, device="cuda", dtype=torch.int32)
    plan = deep_gemm.get_paged_mqa_logits_metadata(lengths, PAGE, deep_gemm.get_num_sms())
    call = deep_gemm.fp8_paged_mqa_logits
    return [partial(call, query, keys, gamma, lengths, table.int(), plan, entries, False) for table in tables]


def _deep_gemm_shared(rows: int, entries: int, gamma: Tensor) -> Callable[[], object]:
    """DeepGEMM's prefill: every row sees all keys."""
    import deep_gemm

    query = torch.randn(rows, HEADS, DIM, device="cuda").to(torch.float8_e4m3fn)
    keys = (torch.randn(entries, DIM, device="cuda").to(torch.float8_e4m3fn), torch.rand(entries, device="cuda"))
    start = torch.zeros(rows, device="cuda", dtype=torch.int32)
    end = torch.full((rows,), entries, device="cuda", dtype=torch.int32)
    return partial(deep_gemm.fp8_mqa_logits, query, keys, gamma, start, end, False)


if __name__ == "__main__":
    main("indexer", cases)
