"""FP8 products at V4-Flash's sizes beside DeepGEMM: dense, fused input projections, and grouped by expert.

"layer inputs" are all products that the attention of a CSA layer makes of its input and of its query latent, the
compressor's in bf16 among them: three stacked ones, as the model calls them, beside its nine matrices one by one.

    python benchmarks/kernels/bench_fp8_product_cuda.py [--only q_b] [--out benchmarks/results/h200.jsonl]

Rows arrive quantised. DeepGEMM (package deep_gemm) is measured where it is installed; its grouped forms want groups
padded to 128 rows (contiguous) or a matrix a group (masked), ours takes sorted rows and the groups' ends.
"""

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from cuda_timing import Calls, Case, main, num_sets
from torch import Tensor

from benthic.kernels.grouped_linear import grouped_linear
from benthic.kernels.linear import Fp8Weight, linear, stack_rows
from benthic.kernels.quantize import QuantizedRows, quantize_rows

DENSE = {"q_a+kv": (1536, 4096), "queries": (40960, 1024), "q_b": (32768, 1024), "o_b": (4096, 8192)}
DENSE |= {"shared w13": (4096, 4096), "shared w2": (4096, 2048)}
FUSED = {"q_a+kv": (1024, 512), "queries": (32768, 8192)}
"""Outputs of the parts that one product of the same input joins."""
RAW = (1024, 1024, 256, 256, 64)
"""Outputs of a compressor's values and gates, of the indexer's, and of the weights of index heads, which stay wide."""
# Name, groups, rows a group, [O, I].
GROUPED = (
    ("experts w13 prefill", 32, 1536, (4096, 4096)),
    ("experts w2 prefill", 32, 1536, (4096, 2048)),
    ("experts w13 prefill", 256, 256, (4096, 4096)),
    ("experts w13 decode", 256, 3, (4096, 4096)),
    ("experts w2 decode", 256, 3, (4096, 2048)),
    ("experts w13 decode", 32, 24, (4096, 4096)),
)


def cases() -> Iterator[Case]:
    """Dense products by rows, parts beside their fusion, groups."""
    for rows in (1, 32, 128, 4096):
        for name, shape in DENSE.items():
            yield _dense(name, rows, shape)
    for rows in (1, 32, 128):
        for name, parts in FUSED.items():
            yield _fused(name, rows, parts, DENSE[name][1])
    for rows in (1, 8, 32, 128):
        yield _layer_inputs(rows)
    for name, groups, rows, shape in GROUPED:
        yield _grouped(name, groups, rows, shape)


def _weight(*shape: int) -> Fp8Weight:
    *experts, outputs, inputs = shape
    data = torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda").bitwise_and_(0xB7)
    scale = torch.rand(*experts, -(-outputs // 128), inputs // 128, device="cuda")
    return Fp8Weight(data.view(torch.float8_e4m3fn), scale)


def _rows(rows: int, inputs: int) -> QuantizedRows:
    return quantize_rows(torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16))


def _bytes(rows: int, shape: tuple[int, int], groups: int = 1) -> int:
    return groups * shape[0] * shape[1] + rows * (shape[1] + 2 * shape[0])


def _dense(name: str, rows: int, shape: tuple[int, int]) -> Case:
    size = _bytes(rows, shape)
    sets = [(_rows(rows, shape[1]), _weight(*shape)) for _ in range(num_sets(size))]
    ours: dict[str, Calls] = {"ours": [partial(linear, x, weight) for x, weight in sets]}
    peer = {"DeepGEMM": [_deep_gemm(x, weight) for x, weight in sets]} if find_spec("deep_gemm") else {}
    return Case(f"{name} M={rows}", ours | peer, size, 2 * rows * shape[0] * shape[1], "fp8")


def _fused(name: str, rows: int, parts: tuple[int, ...], inputs: int) -> Case:
    size = _bytes(rows, (sum(parts), inputs))
    sets = [(_rows(rows, inputs), [_weight(part, inputs) for part in parts]) for _ in range(num_sets(size))]

    def apart(x: QuantizedRows, weights: list[Fp8Weight]) -> list[Tensor]:
        return [linear(x, weight) for weight in weights]

    named: dict[str, Calls] = {
        "fused": [partial(linear, x, stack_rows(weights)) for x, weights in sets],
        "apart": [partial(apart, x, weights) for x, weights in sets],
    }
    if find_spec("deep_gemm"):
        calls = [[_deep_gemm(x, weight) for weight in weights] for x, weights in sets]
        named["DeepGEMM"] = [partial(_each, several) for several in calls]
    return Case(f"fused {name} M={rows}", named, size, 2 * rows * sum(parts) * inputs, "fp8")


def _layer_inputs(rows: int) -> Case:
    hidden, rank = DENSE["q_a+kv"][1], DENSE["queries"][1]
    fp8_outputs = ((sum(FUSED["q_a+kv"]), hidden), (sum(FUSED["queries"]), rank))
    size = sum(_bytes(rows, shape) for shape in fp8_outputs) + 2 * sum(RAW) * hidden
    fused, apart, library = [], [], []
    for _ in range(num_sets(size)):
        x = torch.randn(rows, hidden, device="cuda", dtype=torch.bfloat16)
        inputs = {"q_a+kv": quantize_rows(x), "queries": _rows(rows, rank)}
        parts = [
            (inputs[name], [_weight(part, len_of) for part in outputs])
            for (name, outputs), len_of in zip(FUSED.items(), (hidden, rank), strict=True)
        ]
        raw = torch.randn(sum(RAW), hidden, device="cuda").mul_(hidden**-0.5).bfloat16()
        fused.append([partial(linear, rows_of, stack_rows(weights)) for rows_of, weights in parts])
        fused[-1].append(partial(linear, x, raw, torch.float32))
        apart.append([partial(linear, rows_of, weight) for rows_of, weights in parts for weight in weights])
        apart[-1] += [partial(linear, x, one, torch.float32) for one in raw.split(RAW)]
        if find_spec("deep_gemm"):
            library.append([_deep_gemm(rows_of, weight) for rows_of, weights in parts for weight in weights])
            library[-1] += [partial(F.linear, x, one) for one in raw.split(RAW)]
    named: dict[str, Calls] = {"fused": [partial(_each, calls) for calls in fused]}
    named["apart"] = [partial(_each, calls) for calls in apart]
    if library:
        named["libraries"] = [partial(_each, calls) for calls in library]
    return Case(f"layer inputs M={rows}", named, size, 2 * rows * sum(o * i for o, i in fp8_outputs), "fp8")


def _each(calls: list[Callable[[], object]]) -> None:
    for call in calls:
        call()


def _grouped(name: str, groups: int, rows: int, shape: tuple[int, int]) -> Case:
    weight, x = _weight(groups, *shape), _rows(groups * rows, shape[1])
    ends = torch.arange(1, groups + 1, device="cuda", dtype=torch.int32) * rows
    named: dict[str, Calls] = {"ours": [partial(grouped_linear, x, weight, ends)]}
    if find_spec("deep_gemm"):
        named["DeepGEMM"] = [_deep_gemm_grouped(x, weight, rows)]
    size, flops = _bytes(groups * rows, shape, groups), 2 * groups * rows * shape[0] * shape[1]
    return Case(f"{name} {groups} x {rows}", named, size, flops, "fp8")


def _deep_gemm(x: QuantizedRows, weight: Fp8Weight) -> Callable[[], object]:
    import deep_gemm

    y = torch.empty(x.shape[0], weight.shape[0], device="cuda", dtype=torch.bfloat16)
    return partial(deep_gemm.fp8_gemm_nt, tuple(x), (weight.data, weight.scale), y, disable_ue8m0_cast=True)


def _deep_gemm_grouped(x: QuantizedRows, weight: Fp8Weight, rows: int) -> Callable[[], object]:
    import deep_gemm

    groups, outputs, inputs = weight.shape
    held, options = (weight.data, weight.scale), {"disable_ue8m0_cast": True}
    if rows % 128 == 0:
        y = torch.empty(groups * rows, outputs, device="cuda", dtype=torch.bfloat16)
        layout = torch.arange(groups, device="cuda", dtype=torch.int32).repeat_interleave(rows)
        return partial(deep_gemm.m_grouped_fp8_gemm_nt_contiguous, tuple(x), held, y, layout, **options)
    padded = _rows(groups * 128, inputs)
    parts = (padded.data.view(groups, 128, inputs), padded.scale.view(groups, 128, -1))
    y = torch.empty(groups, 128, outputs, device="cuda", dtype=torch.bfloat16)
    counts = torch.full((groups,), rows, device="cuda", dtype=torch.int32)
    return partial(deep_gemm.fp8_m_grouped_gemm_nt_masked, parts, held, y, counts, rows, **options)


if __name__ == "__main__":
    main("fp8_product", cases)
