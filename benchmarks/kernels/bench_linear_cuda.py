"""Products on CUDA beside the library's (cuBLAS, torch's grouped product), at V4-Flash's sizes.

    python benchmarks/kernels/bench_linear_cuda.py [--only head] [--out benchmarks/results/h200.jsonl]

"CUDA C++" is what bf16 takes on Hopper, "Triton" what everything else takes, with the same bits.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from cuda_timing import Case, main, num_sets
from torch import Tensor

from benthic.kernels.grouped_linear import grouped_linear
from benthic.kernels.linear import batched_linear, linear

ROWS = (1, 32, 128, 4096)
# Name, groups that every row passes, [O, I], dtype of values, dtype of results.
PRODUCTS = (
    ("q_a and kv", 1, (1536, 4096), torch.bfloat16, torch.bfloat16),
    ("q_b", 1, (32768, 1024), torch.bfloat16, torch.bfloat16),
    ("o_a", 8, (1024, 4096), torch.bfloat16, torch.bfloat16),
    ("o_b", 1, (4096, 8192), torch.bfloat16, torch.bfloat16),
    ("raw rows of 4", 1, (2624, 4096), torch.bfloat16, torch.float32),
    ("raw rows of 128", 1, (1024, 4096), torch.bfloat16, torch.float32),
    ("gate", 1, (256, 4096), torch.bfloat16, torch.float32),
    ("head", 1, (129280, 4096), torch.bfloat16, torch.float32),
    ("gate in float32", 1, (256, 4096), torch.float32, torch.float32),
    ("raw rows of 4 in float32", 1, (2624, 4096), torch.float32, torch.float32),
)
EXPERTS, TOP_K = 256, 6
GROUPED = (("experts up", (4096, 4096)), ("experts down", (4096, 2048)))
MOST_RESULTS = 50_000_000
"""Logits of more rows are never made at once."""

Product = Callable[[Tensor, Tensor], Tensor]


def cases() -> Iterator[Case]:
    """Every product with every number of rows, then the experts'."""
    for name, groups, shape, dtype, out_dtype in PRODUCTS:
        weights = [_weight(groups, shape, dtype) for _ in range(num_sets(groups * shape[0] * shape[1] * 2, 24))]
        for rows in ROWS:
            if rows * groups * shape[0] > MOST_RESULTS:
                continue
            x = torch.randn(rows, groups, shape[1], device="cuda").to(dtype)
            ours = {"Triton": _ours("triton", out_dtype)}
            if dtype is torch.bfloat16:
                ours = {"CUDA C++": _ours("cuda", out_dtype), **ours}
            yield Case(
                f"{name} x {rows}",
                {key: [partial(op, x, w) for w in weights] for key, op in (ours | {"cuBLAS": _library}).items()},
                weights[0].nbytes + x.nbytes + rows * groups * shape[0] * out_dtype.itemsize,
                2 * rows * groups * shape[0] * shape[1],
                "bf16" if dtype is torch.bfloat16 else "tf32",
            )
    for name, shape in GROUPED:
        weight = _weight(EXPERTS, shape, torch.bfloat16)
        for rows in ROWS:
            x, ends = _routed(rows, shape[1])
            yield Case(
                f"{name} x {rows}",
                {
                    "Triton": [partial(grouped_linear, x, weight, ends)] * 2,
                    "grouped_mm": [partial(F.grouped_mm, x, weight.transpose(1, 2), offs=ends)] * 2,
                },
                x.nbytes + weight.nbytes * min(len(x), EXPERTS) // EXPERTS,
                2 * len(x) * shape[0] * shape[1],
            )


def _weight(groups: int, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    return torch.randn(groups, *shape, device="cuda").div_(shape[1] ** 0.5).to(dtype)


def _ours(impl: str, out_dtype: torch.dtype) -> Product:
    def product(x: Tensor, weight: Tensor) -> Tensor:
        if len(weight) > 1:
            return batched_linear(x, weight, impl=impl)  # type: ignore[arg-type]
        return linear(x[:, 0], weight[0], out_dtype, impl=impl)  # type: ignore[arg-type]

    return product


def _library(x: Tensor, weight: Tensor) -> Tensor:
    if len(weight) == 1:
        return F.linear(x[:, 0], weight[0])
    return torch.bmm(x.transpose(0, 1), weight.transpose(1, 2))


def _routed(rows: int, inputs: int) -> tuple[Tensor, Tensor]:
    """Rows of tokens that chose their experts at random."""
    chosen = torch.rand(rows, EXPERTS, device="cuda").topk(TOP_K).indices.flatten()
    ends = torch.bincount(chosen, minlength=EXPERTS).cumsum(0).to(torch.int32)
    return torch.randn(rows * TOP_K, inputs, device="cuda", dtype=torch.bfloat16), ends


if __name__ == "__main__":
    main("linear", cases)
