"""The CUDA kernels of moe_experts: near float64, the same bits in any batch and schedule, nothing written elsewhere."""

import pytest
import torch

from benthic.kernels.hyper_boundary import hyper_boundary
from benthic.kernels.hyper_boundary.cases import boundary_inputs
from benthic.kernels.moe_experts import Experts, Fp4Experts, Fp8Experts, cases, pack_fp4_experts, routed_experts
from benthic.kernels.moe_experts.cuda import (
    add_picks,
    blocked_rows,
    gather,
    multiply_w2,
    multiply_w13,
    picked_outputs,
    routed_experts_cuda,
)
from benthic.kernels.moe_experts.reference import product
from benthic.kernels.quantize import QuantizedRows, quantize_rows
from benthic.kernels.swiglu.reference import swiglu_ref

pytestmark = pytest.mark.gpu
SIZE, WIDTH, EXPERTS, TOP_K = 512, 768, 12, 3
GROUPS = (32, 64, 128)


def experts(span: cases.Span = "near", experts: int = EXPERTS) -> tuple[Fp4Experts, Fp4Experts]:
    return (
        pack_fp4_experts(*cases.fp4(experts, 2 * WIDTH, SIZE, span, "cuda"), "w13"),
        pack_fp4_experts(*cases.fp4(experts, SIZE, WIDTH, span, "cuda"), "w2"),
    )


@pytest.mark.parametrize("span", ["near", "wide rows"])
@pytest.mark.parametrize("rows", [1, 7, 40, 133])
def test_results_are_near_the_reference(rows: int, span: cases.Span) -> None:
    w13, w2 = experts(span)
    x, routing = cases.rows(rows, SIZE, "cuda"), cases.routing(rows, EXPERTS, TOP_K, "cuda")
    want = routed_experts(x, routing, w13, w2, 10.0, impl="reference").double()
    got = routed_experts(x, routing, w13, w2, 10.0, impl="cuda").double()
    # FP8 values between the products that lie between two codes may fall to either side, outputs are bfloat16.
    assert (got - want).norm() <= 7e-3 * want.norm()


def test_the_second_product_is_near_float64() -> None:
    _, w2 = experts()
    routing, inner = cases.routing(200, EXPERTS, TOP_K, "cuda"), cases.rows(200, WIDTH, "cuda")
    for group in GROUPS:
        outputs = torch.full((200 * TOP_K, SIZE), float("nan"), dtype=torch.bfloat16, device="cuda")
        multiply_w2(gather(inner, routing, group), routing, w2, outputs, group)
        for expert in range(EXPERTS):
            start, end = routing.offsets[expert : expert + 2].tolist()
            picks = routing.order[start:end].long()
            values = inner.dequantized(torch.float64)[picks // TOP_K] @ w2.matrix(expert).double().T
            error = (outputs[picks].double() - values).norm() / values.norm()
            assert error < 2.5e-3, f"group {group}, expert {expert}, {end - start} rows: {error:.2e}"


@pytest.mark.parametrize("span", ["near", "wide rows"])
def test_every_schedule_gives_the_same_bits(span: cases.Span) -> None:
    w13, w2 = experts(span)
    x, routing = cases.rows(700, SIZE, "cuda"), cases.routing(700, EXPERTS, TOP_K, "cuda")
    first, *others = (routed_experts_cuda(x, routing, w13, w2, 10.0, None, torch.float32, group) for group in GROUPS)
    assert all(torch.equal(first, other) for other in others)


def test_a_row_has_the_same_bits_in_any_batch_at_any_place() -> None:
    w13, w2 = experts()
    x, routing = cases.rows(700, SIZE, "cuda"), cases.routing(700, EXPERTS, TOP_K, "cuda")
    whole = routed_experts(x, routing, w13, w2, 10.0, impl="cuda")
    for rows in (1, 7, 64, 133):
        places = torch.randperm(700, device="cuda")[:rows]
        part = cases.from_picks(routing.experts[places], routing.weights[places], EXPERTS)
        got = routed_experts(QuantizedRows(x.data[places], x.scale[places]), part, w13, w2, 10.0, impl="cuda")
        assert torch.equal(got, whole[places]), rows


def test_wide_exponents_multiply_as_near_ones_do() -> None:
    """The same matrices in both streamed forms give the same bits."""
    codes, scale = cases.fp4(EXPERTS, SIZE, WIDTH, "near", "cuda")
    near = pack_fp4_experts(codes, scale, "w2")
    both = pack_fp4_experts(*(torch.cat(pair) for pair in zip((codes, scale), one_wide(), strict=True)), "w2")
    assert (near.form, both.form) == ("row", "block")
    routing, inner = cases.routing(50, EXPERTS, TOP_K, "cuda"), cases.rows(50, WIDTH, "cuda")
    wider = cases.from_picks(routing.experts, routing.weights, EXPERTS + 1)
    results = []
    for weights, route in ((near, routing), (both, wider)):
        outputs = torch.empty((50 * TOP_K, SIZE), dtype=torch.bfloat16, device="cuda")
        multiply_w2(gather(inner, route, 32), route, weights, outputs, 32)
        results.append(outputs)
    assert torch.equal(*results)


def one_wide() -> tuple[torch.Tensor, torch.Tensor]:
    return cases.fp4(1, SIZE, WIDTH, "wide rows", "cuda")


def test_resting_rows_and_idle_experts_are_left_alone() -> None:
    w13, w2 = experts()
    x = cases.rows(60, SIZE, "cuda")
    routing = cases.routing(60, EXPERTS, TOP_K, "cuda", only=5, live=37)
    for group in GROUPS:
        blocked = gather(x, routing, group)
        inner = blocked_rows(60 * TOP_K, EXPERTS, WIDTH, x.device).fill_(0x55)
        multiply_w13(blocked, routing, w13, 10.0, inner, group)
        outputs = torch.full((60 * TOP_K, SIZE), float("nan"), dtype=torch.bfloat16, device="cuda")
        multiply_w2(inner, routing, w2, outputs, group)
        assert outputs[37 * TOP_K :].isnan().all()
        assert not outputs[: 37 * TOP_K].isnan().any()
        used = int((routing.offsets[5] + 7 * 5) // 8 * 8)
        assert (inner.flatten()[used * inner.shape[1] :] == 0x55).all()
        total = add_picks(outputs, routing.slots, None, torch.float32)
        assert (total[37:] == 0).all()


def test_a_graph_follows_the_routing_it_is_replayed_with() -> None:
    w13, w2 = experts()
    x, routing = cases.rows(20, SIZE, "cuda"), cases.routing(20, EXPERTS, TOP_K, "cuda")
    shared = torch.randn(20, SIZE, device="cuda", dtype=torch.bfloat16)
    routed_experts(x, routing, w13, w2, 10.0, shared, torch.bfloat16, impl="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = routed_experts(x, routing, w13, w2, 10.0, shared, torch.bfloat16, impl="cuda")
    for only in (4, EXPERTS):
        other = cases.routing(20, EXPERTS, TOP_K, "cuda", only=only)
        for old, new in zip(routing, other, strict=True):
            old.copy_(new)
        graph.replay()
        assert torch.equal(got, routed_experts(x, other, w13, w2, 10.0, shared, torch.bfloat16, impl="cuda"))


def test_the_first_product_is_near_the_composition_of_its_parts() -> None:
    w13, _ = experts()
    rows, routing = cases.rows(50, SIZE, "cuda"), cases.routing(50, EXPERTS, 1, "cuda")
    for group in GROUPS:
        inner = blocked_rows(50, EXPERTS, WIDTH, rows.device)
        multiply_w13(gather(rows, routing, group), routing, w13, 2.0, inner, group)
        for row, expert in enumerate(routing.experts[:, 0].tolist()):
            gate_up = product(rows.rows(row, row + 1), w13, expert)
            want = quantize_rows(swiglu_ref(gate_up, routing.weights[row], 2.0, torch.float32))
            start, end = routing.offsets[expert : expert + 2].tolist()
            place = routing.order[start:end].tolist().index(row)
            padded = (start + 7 * expert) // 8 * 8
            got = unblocked(inner[padded : padded + -(-(end - start) // 8) * 8], WIDTH).rows(place, place + 1)
            # The float32 sums differ in order: a scale or a code at an edge may go to either side.
            assert (got.scale == want.scale).float().mean() > 0.8
            wrong = (got.dequantized() - want.dequantized()).norm()
            assert wrong < 1e-2 * want.dequantized().norm(), f"group {group}, row {row}"


def unblocked(group: torch.Tensor, size: int) -> QuantizedRows:
    """The rows of one group in blocked form, uint8 [n, size + size / 32]."""
    num_rows = group.shape[0]
    stages = group.reshape(size // 256, num_rows * 264)
    chunks = stages[:, : num_rows * 256].reshape(size // 128, num_rows, 8, 16)
    place = torch.arange(8, device=group.device) ^ (torch.arange(num_rows, device=group.device) % 8)[:, None]
    codes = chunks.gather(2, place[None, :, :, None].expand_as(chunks)).permute(1, 0, 2, 3)
    scale = stages[:, num_rows * 256 :].contiguous().view(torch.float32).view(size // 256, 2, num_rows).permute(2, 0, 1)
    data = codes.reshape(num_rows, size).view(torch.float8_e4m3fn)
    return QuantizedRows(data, scale.reshape(num_rows, size // 128))


@pytest.mark.parametrize("form", ["plain", "row", "block", "fp8"])
def test_the_triton_kernels_take_every_form_and_ignore_neighbours(form: str) -> None:
    w13, w2 = triton_experts(form)
    size = w2.shape[1]
    x, routing = cases.rows(133, size, "cuda"), cases.routing(133, EXPERTS, TOP_K, "cuda")
    whole = routed_experts(x, routing, w13, w2, 2.0, impl="triton")
    want = routed_experts(x, routing, w13, w2, 2.0, impl="reference")
    assert (whole - want).norm() < 4e-3 * want.norm()
    for rows in (1, 7, 64):
        places = torch.randperm(133, device="cuda")[:rows]
        part = cases.from_picks(routing.experts[places], routing.weights[places], EXPERTS)
        got = routed_experts(QuantizedRows(x.data[places], x.scale[places]), part, w13, w2, 2.0, impl="triton")
        assert torch.equal(got, whole[places]), rows


def triton_experts(form: str) -> tuple[Experts, Experts]:
    if form in ("row", "block"):
        return experts("near" if form == "row" else "wide rows")
    if form == "plain":
        w13, w2 = cases.fp4(EXPERTS, 64, 256, device="cuda"), cases.fp4(EXPERTS, 256, 32, device="cuda")
        return pack_fp4_experts(*w13, "w13"), pack_fp4_experts(*w2, "w2")
    w13 = torch.randn(EXPERTS, 2 * 96, 256, device="cuda").to(torch.float8_e4m3fn)
    w2 = torch.randn(EXPERTS, 256, 96, device="cuda").to(torch.float8_e4m3fn)
    scales = torch.rand(EXPERTS, 2, 2, device="cuda") / 16
    return Fp8Experts(w13, scales), Fp8Experts(w2, scales[:, :, :1].contiguous())


def test_a_row_alone_is_multiplied_from_where_the_boundary_left_it() -> None:
    w13, w2 = experts()
    given = boundary_inputs(1, torch.bfloat16, size=SIZE)
    here = {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    with torch.no_grad():
        boundary = hyper_boundary(**here, linear_scale="ue8m0", impl="cuda")
    assert boundary.quantized is not None
    assert boundary.alone is not None
    for live in (1, 0):
        routing = cases.routing(1, EXPERTS, TOP_K, "cuda", live=live)
        gathered = picked_outputs(boundary.quantized, routing, w13, w2, 10.0)
        left = picked_outputs(boundary.quantized, routing, w13, w2, 10.0, alone=boundary.alone)
        assert not live or torch.equal(left, gathered)
