"""Price of FP4 experts on CUDA: products and whole layers of Flash's shapes beside DeepGEMM's masked FP8 products.

    python benchmarks/kernels/bench_moe_experts_cuda.py [--only words] [--out benchmarks/results/h200.jsonl]

"w13" and "w2" are products alone, rows gathered before (for the peer as well: quantised and in place); our w13 ends in
FP8 rows, the peer's in bfloat16. "layer" is both: ours with SwiGLU and rounding between them, the peer's without.
"whole" adds our gather and sum. Weights are never in the L2 cache: sets of experts take turns where one would fit.
"""

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from cuda_timing import Case, main

from benthic.kernels.moe_experts import Fp4Experts, Kind, Spans, cases
from benthic.kernels.moe_experts import cuda as ours
from benthic.kernels.moe_experts.layout import PIECE_BYTES, TILE
from benthic.kernels.moe_route import ExpertRows

SIZE, WIDTH, EXPERTS, TOP_K = 4096, 2048, 256, 6
PEER_ROWS = 256
FP4_BYTES = 0.5 + 1 / 32
Peer = Callable[[int, ExpertRows, int], Callable[[], object]]


def random_experts(kind: Kind) -> Fp4Experts:
    """256 matrices of random codes, exponents within 8 steps."""
    outputs, inputs = (2 * WIDTH, SIZE) if kind == "w13" else (SIZE, WIDTH)
    shape = (EXPERTS, outputs // TILE, inputs // TILE, PIECE_BYTES)
    pieces = torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda")
    pieces[..., TILE * TILE // 2 :] &= 7
    base = torch.full((EXPERTS, outputs), 2.0**-12, device="cuda")
    return Fp4Experts(pieces, base, kind, "row", Spans(7, 7, 0, EXPERTS * outputs))


def part(experts: Fp4Experts, start: int, count: int) -> Fp4Experts:
    codes, scale = experts.codes[start : start + count], experts.scale[start : start + count]
    return Fp4Experts(codes, scale, experts.kind, experts.form, experts.spans)


def even_routing(experts: int, rows: int) -> ExpertRows:
    """`rows` rows for every expert, one pick a row."""
    picks = torch.arange(experts * rows, device="cuda") % experts
    return cases.from_picks(picks[:, None], torch.ones(experts * rows, 1, device="cuda"), experts)


def peer_products() -> Peer | None:
    """DeepGEMM's masked products by (inputs); None where it is not installed."""
    try:
        import deep_gemm
    except ImportError:
        return None
    held: dict[int, tuple[Tensor, ...]] = {}

    def data(inputs: int) -> tuple[Tensor, ...]:
        if inputs not in held:
            codes = torch.randint(0, 256, (EXPERTS, 4096, inputs), device="cuda", dtype=torch.uint8)
            weight = codes.bitwise_and_(0xB7).view(torch.float8_e4m3fn)
            scale = torch.rand(EXPERTS, 4096 // 128, inputs // 128, device="cuda")
            x = torch.randn(EXPERTS, PEER_ROWS, inputs, device="cuda").to(torch.float8_e4m3fn)
            x_scale = torch.rand(EXPERTS, PEER_ROWS, inputs // 128, device="cuda")
            result = torch.empty(EXPERTS, PEER_ROWS, 4096, device="cuda", dtype=torch.bfloat16)
            held[inputs] = (x, x_scale, weight, scale, result)
        return held[inputs]

    def product(inputs: int, routing: ExpertRows, start: int) -> Callable[[], object]:
        count = routing.counts.shape[0]
        x, x_scale, weight, scale, result = (one[start : start + count] for one in data(inputs))
        mean = max(1, round(routing.experts.numel() / count))
        return partial(
            deep_gemm.fp8_m_grouped_gemm_nt_masked,
            (x, x_scale), (weight, scale), result, routing.counts, mean, disable_ue8m0_cast=True,
        )  # fmt: skip

    return product


def workload() -> Iterator[Case]:
    """Every case: name, ours first."""
    w13, w2, peer = random_experts("w13"), random_experts("w2"), peer_products()
    for count, rows in ((256, 1), (256, 8), (256, 24), (32, 24), (256, 64), (32, 64), (256, 128)):
        routing = even_routing(count, rows)
        starts = range(0, EXPERTS, count)
        yield from _products(f"{count} x {rows}", w13, w2, routing, starts, peer, whole=False)
    for tokens in (1, 32, 128, 512, 4096):
        routing = cases.routing(tokens, EXPERTS, TOP_K, "cuda")
        yield from _products(f"{tokens} tokens", w13, w2, routing, (0,), peer, whole=True)


def _products(
    name: str, w13: Fp4Experts, w2: Fp4Experts, routing: ExpertRows, starts: range | tuple[int, ...], peer: Peer | None,
    *, whole: bool,
) -> Iterator[Case]:  # fmt: skip
    rows, top_k = routing.experts.shape
    count = routing.counts.shape[0]
    forced = os.environ.get("GROUP_ROWS")
    group = int(forced) if forced else ours.group_rows_of(rows, top_k, count)
    x = cases.rows(rows, SIZE, "cuda")
    blocked, inner = ours.gather(x, routing, group), ours.gather(cases.rows(rows, WIDTH, "cuda"), routing, group)
    outputs = torch.empty(rows * top_k, SIZE, dtype=torch.bfloat16, device="cuda")
    hit = int((routing.counts > 0).sum())
    weights = hit * 4096 * SIZE

    def first(start: int) -> None:
        ours.multiply_w13(blocked, routing, part(w13, start, count), 10.0, inner, group)

    def second(start: int) -> None:
        ours.multiply_w2(inner, routing, part(w2, start, count), outputs, group)

    def layer(start: int) -> None:
        first(start)
        second(start)

    def calls(run: Callable[[int], object]) -> list[Callable[[], object]]:
        return [partial(run, start) for start in starts]

    def beside(own: Callable[[int], object], *inputs: int) -> dict[str, list[Callable[[], object]]]:
        found = {"ours": calls(own)}
        if peer is not None and int(routing.counts.max()) <= PEER_ROWS:
            for start in starts:
                products = [peer(size, routing, start) for size in inputs]
                found.setdefault("DeepGEMM", []).append(lambda products=products: [run() for run in products])
        return found

    flops = 2 * rows * top_k * 4096
    if not whole:
        yield Case(f"w13 {name}", beside(first, SIZE), int(weights * FP4_BYTES), flops * SIZE, "fp8")
        yield Case(f"w2 {name}", beside(second, WIDTH), int(weights * FP4_BYTES / 2), flops * WIDTH, "fp8")
    num_bytes, flops = int(weights * FP4_BYTES * 1.5), flops * (SIZE + WIDTH)
    yield Case(f"layer {name}", beside(layer, SIZE, WIDTH), num_bytes, flops, "fp8")
    if whole:
        run = partial(ours.routed_experts_cuda, x, routing, w13, w2, 10.0, None, torch.float32)
        yield Case(f"whole {name}", {"ours": [run]}, num_bytes, flops, "fp8")


if __name__ == "__main__":
    main("moe_experts", workload)
