"""Price of decode in Flash's layers on CUDA: attention by the Triton kernels beside the reference, and the indexer.

    python benchmarks/kernels/bench_attention_cuda.py [--batch 1 32 128]

Microseconds of a replayed CUDA graph, so that launching does not count, and of plain calls, median of the repeats. Both
implementations run on the same inputs in one process; every row is a sequence of its own. 64 heads of 512 in bfloat16;
lists of 640 (window and 512 picks) and 1152 keys (window and 1024 entries), indexer keys of a context of 32768.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from cuda_timing import gpu_name, positive
from torch import Tensor

from benthic.kernels.choice import Impl
from benthic.kernels.index_scores import index_scores
from benthic.kernels.kv_storage import PackedKv, pack_kv
from benthic.kernels.sparse_attention import KeyTables, KeyTiles, TilePlan, plan_tiles, sparse_attention

HEADS, DIM, ROPE, PAGE = 64, 512, 64, 64
INDEX_HEADS, INDEX_DIM = 64, 128
REPEATS = 15


@dataclass(frozen=True)
class Row:
    """The last position of one sequence."""

    sequence: int
    start_row: int
    start: int
    length: int = 1


def decode(batch: int, ratio: int, position: int) -> tuple[TilePlan, int]:
    """The plan of one token of each of `batch` sequences in shuffled pages, and the number of slots."""
    entry_pages = -(-((position + 1) // ratio) // PAGE)
    window_pages = position // PAGE + 1
    # Pages behind the window are not read and share one.
    window = torch.zeros(batch, window_pages, dtype=torch.int64)
    window[:, -3:] = torch.randperm(3 * batch).view(batch, 3)[:, -window_pages:]
    entries = torch.randperm(batch * entry_pages).view(batch, entry_pages)
    base = 3 * batch * PAGE
    tables = KeyTables(window.cuda(), PAGE, {ratio: entries.cuda()}, {ratio: PAGE}, base)
    rows = [Row(i, i, position) for i in range(batch)]
    plan = plan_tiles(rows, tables, [ratio], window=128, num_rows=batch, device=torch.device("cuda"))[ratio]
    return plan, base + batch * entry_pages * PAGE


def random_picks(batch: int, entries: int, k: int) -> Tensor:
    """Ascending picks, int32 [batch, 1, k]."""
    return torch.rand(batch, 1, entries, device="cuda").topk(k).indices.sort(-1).values.int()


def cases(batch: int) -> Iterator[tuple[str, Callable[..., object]]]:
    """(name, call taking `impl`)."""
    for name, ratio, position, k in (("640", 4, 8191, 512), ("1152", 128, 131071, 0)):
        plan, slots = decode(batch, ratio, position)
        query = torch.randn(batch, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
        keys = torch.randn(slots, DIM, device="cuda", dtype=torch.bfloat16)
        picks = [random_picks(batch, (position + 1) // ratio, k)] if k else None
        sink = torch.zeros(HEADS, device="cuda")
        call = partial(sparse_attention, plan=plan, sink=sink, scale=DIM**-0.5, picks=picks)
        yield f"attention {name}", partial(call, query, keys)
        yield f"attention {name} packed", partial(call, query, PackedKv(pack_kv(keys, ROPE), DIM, ROPE, keys.dtype))
    plan, slots = decode(batch, 4, 32767)
    tiles: KeyTiles = plan.groups[0]
    index_query = torch.randn(batch, INDEX_HEADS, INDEX_DIM, device="cuda", dtype=torch.bfloat16)
    index_keys = torch.randn(slots, INDEX_DIM, device="cuda", dtype=torch.bfloat16)
    gamma = torch.randn(batch, INDEX_HEADS, device="cuda")
    yield "index scores 32K", partial(index_scores, index_query, gamma, index_keys, tiles)


def graph_time(call: Callable[[], object]) -> float:
    """Microseconds of one replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(4):
            call()
    return _median(graph.replay) / 4


def _median(call: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * start.elapsed_time(end))
    return statistics.median(times)


def eager_time(call: Callable[[], object]) -> float:
    """Microseconds of one of many calls in a row."""
    times = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            call()
        torch.cuda.synchronize()
        times.append(1e5 * (time.perf_counter() - start))
    return statistics.median(times)


def main() -> None:
    """Prints one line a case."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--batch", type=positive, nargs="+", default=[1, 32, 128])
    options = arguments.parse_args()
    name = gpu_name()
    torch.manual_seed(0)
    impls: tuple[Impl, ...] = ("reference", "triton")
    print(f"# {name}, torch {torch.__version__}; us: reference, triton, ratio")
    with torch.inference_mode():
        for batch in options.batch:
            for name, call in cases(batch):
                graph, eager = ([time_of(partial(call, impl=i)) for i in impls] for time_of in (graph_time, eager_time))
                print(
                    f"{name:<24} batch {batch:>3}  graph {graph[0]:8.1f} {graph[1]:8.1f} {graph[0] / graph[1]:5.2f}x"
                    f"  eager {eager[0]:8.1f} {eager[1]:8.1f} {eager[0] / eager[1]:5.2f}x"
                )


if __name__ == "__main__":
    main()
