"""Price of the products on CUDA beside the library's (cuBLAS, torch's grouped product), at V4-Flash's sizes.

    python benchmarks/kernels/bench_linear_cuda.py [--rows 1 32 128 4096]

One line one product: microseconds of the library and of ours, and how many times as fast ours is, measured in turns in
one run. Calls are replayed from one CUDA graph over several copies of the weight, so that none lies in a cache that a
decoding step would find cold.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benthic.kernels.grouped_linear import grouped_linear
from benthic.kernels.linear import batched_linear, linear

COLD_BYTES = 300_000_000
REPEATS = 7
# Name, groups that every row passes, [O, I], dtype.
PRODUCTS = (
    ("q_a and kv", 1, (1536, 4096), torch.bfloat16),
    ("q_b", 1, (32768, 1024), torch.bfloat16),
    ("o_a", 8, (1024, 4096), torch.bfloat16),
    ("o_b", 1, (4096, 8192), torch.bfloat16),
    ("shared expert up", 1, (4096, 4096), torch.bfloat16),
    ("gate", 1, (256, 4096), torch.float32),
    ("compressor", 1, (2624, 4096), torch.float32),
    ("hyper-connection", 1, (24, 16384), torch.float32),
    ("head", 1, (129280, 4096), torch.float32),
)
EXPERTS, TOP_K = 256, 6
GROUPED = (("experts up", (4096, 4096)), ("experts down", (4096, 2048)))
# Logits of more rows are never made at once.
MOST_RESULTS = 50_000_000


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, nargs="+", default=[1, 32, 128, 4096])
    all_rows = arguments.parse_args().rows
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}")
    with torch.inference_mode():
        for name, groups, shape, dtype in PRODUCTS:
            size = groups * shape[0] * shape[1] * dtype.itemsize
            weights = [_weight(groups, shape, dtype) for _ in range(min(8, max(1, COLD_BYTES // size)))]
            for rows in all_rows:
                if rows * shape[0] * groups > MOST_RESULTS and name == "head":
                    continue
                x = torch.randn(rows, groups, shape[1], device="cuda", dtype=dtype)
                _report(name, shape, rows, [partial(_library, x, w) for w in weights], [_ours(x, w) for w in weights])
        for name, shape in GROUPED:
            weight = _weight(EXPERTS, shape, torch.bfloat16)
            for rows in all_rows:
                x, ends = _routed(rows, shape[1])
                library = partial(F.grouped_mm, x, weight.transpose(1, 2), offs=ends)
                _report(name, shape, rows, [library] * 2, [partial(grouped_linear, x, weight, ends)] * 2)


def _weight(groups: int, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    return torch.randn(groups, *shape, device="cuda", dtype=dtype).div_(shape[1] ** 0.5)


def _library(x: Tensor, weight: Tensor) -> Tensor:
    if len(weight) == 1:
        return F.linear(x[:, 0], weight[0])
    return torch.bmm(x.transpose(0, 1), weight.transpose(1, 2))


def _ours(x: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    return partial(linear, x[:, 0], weight[0]) if len(weight) == 1 else partial(batched_linear, x, weight)


def _routed(rows: int, inputs: int) -> tuple[Tensor, Tensor]:
    """Rows of tokens that chose their experts at random."""
    chosen = torch.rand(rows, EXPERTS, device="cuda").topk(TOP_K).indices.flatten()
    ends = torch.bincount(chosen, minlength=EXPERTS).cumsum(0).to(torch.int32)
    return torch.randn(rows * TOP_K, inputs, device="cuda", dtype=torch.bfloat16), ends


def _report(
    name: str,
    shape: tuple[int, int],
    rows: int,
    library: list[Callable[[], Tensor]],
    ours: list[Callable[[], Tensor]],
) -> None:
    replays = [_captured(library), _captured(ours)]
    times: list[list[float]] = [[], []]
    for _ in range(REPEATS):
        for replay, found in zip(replays, times, strict=True):
            found.append(_microseconds(replay) / len(ours))
    base, own = (statistics.median(found) for found in times)
    print(f"{name:<18} {shape!s:<15} {rows:>5} rows {base:9.1f} us library {own:9.1f} us ours {base / own:6.2f}x")


def _captured(calls: list[Callable[[], Tensor]]) -> torch.cuda.CUDAGraph:
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    return graph


def _microseconds(graph: torch.cuda.CUDAGraph) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3


if __name__ == "__main__":
    main()
