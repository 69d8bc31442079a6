"""FP8 products on the device: near float64, and the same bits in every tile, batch, grouping and language."""

import pytest
import torch
from torch import Tensor

from benthic.kernels.fp8_product import fp8_gated_product, fp8_product, in_eights
from benthic.kernels.grouped_linear import grouped_linear, grouped_row_scaled
from benthic.kernels.linear import Fp8Weight, linear
from benthic.kernels.linear.cases import fp8_inputs
from benthic.kernels.quantize import QuantizedRows, quantize_rows
from benthic.kernels.swiglu.reference import swiglu_ref

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
SIZES = ((0, 1, 0, 2, 17, 0), (300, 5, 128, 0, 64, 129), (3,) * 32)


def on_device(rows: int, shape: tuple[int, int], *, extreme: bool = False) -> tuple[QuantizedRows, Fp8Weight]:
    given = fp8_inputs(rows, shape, extreme=extreme)
    return QuantizedRows(*(part.to(CUDA) for part in given["x"])), given["weight"].to(CUDA)


def chosen(x: QuantizedRows, rows: Tensor) -> QuantizedRows:
    # As bytes: not every version of torch gathers float8.
    return QuantizedRows(x.data.view(torch.uint8)[rows].view(torch.float8_e4m3fn), x.scale[rows])


@pytest.mark.parametrize("impl", ["cuda", "triton"])
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize(("rows", "shape"), [(1, (256, 384)), (61, (33, 128)), (133, (520, 1024)), (300, (777, 640))])
def test_products_are_near_float64(rows: int, shape: tuple[int, int], extreme: bool, impl: str) -> None:
    x, weight = on_device(rows, shape, extreme=extreme)
    got = linear(x, weight, torch.float32, impl=impl)  # type: ignore[arg-type]
    a, b = x.dequantized(torch.float64), weight.dequantized(torch.float64)
    # The tensor core keeps 13 fractional bits beside the largest of 32 products and the running sum; four such steps.
    bound = 8 * 2.0**-13 * 32 * a.abs().amax(1, keepdim=True) * b.abs().amax(1) + 2.0**-20 * (a.abs() @ b.abs().t())
    assert ((got - a @ b.t()).abs() <= bound).all()
    if not extreme:
        assert (got - a @ b.t()).norm() <= 4e-4 * (a @ b.t()).norm()
    assert torch.equal(linear(x, weight, impl=impl), got.to(torch.bfloat16))  # type: ignore[arg-type]


def test_no_rows_give_none() -> None:
    x, weight = on_device(3, (256, 384))
    assert linear(chosen(x, torch.arange(0, device=CUDA)), weight).shape == (0, 256)


def test_zeros_and_scales_at_the_ends_of_their_range_stay_exact() -> None:
    x, weight = on_device(9, (256, 256))
    nothing = QuantizedRows(torch.zeros_like(x.data), x.scale)
    assert torch.equal(linear(nothing, weight, torch.float32), torch.zeros(9, 256, device=CUDA))
    shifted = QuantizedRows(x.data, x.scale * 2.0**60)
    small = Fp8Weight(weight.data, weight.scale * 2.0**-60)
    assert torch.equal(linear(shifted, small, torch.float32), linear(x, weight, torch.float32))


@pytest.mark.parametrize("shape", [(1536, 4096), (4096, 2048), (200, 512)], ids=str)
def test_a_row_has_the_same_bits_among_1_to_8192(shape: tuple[int, int]) -> None:
    x, weight = on_device(8192, shape)
    whole = linear(x, weight, torch.float32)
    for rows in (1, 2, 7, 8, 9, 31, 64, 65, 100, 128, 129, 133, 500, 1000, 4096):
        order = torch.randperm(8192, device=CUDA)[:rows]
        assert torch.equal(linear(chosen(x, order), weight, torch.float32), whole[order]), rows


@pytest.mark.parametrize("rows", [1, 64, 133, 300])
def test_every_tile_and_triton_give_the_same_bits(rows: int) -> None:
    from benthic.kernels.fp8_product.cuda import multiply_fp8
    from benthic.kernels.fp8_product.tiles import SHAPES

    x, weight = on_device(rows, (520, 1024))
    first = linear(x, weight, torch.float32)
    given = (x, weight.data[None], weight.scale[None], None, None, torch.float32)
    different = [shape.number for shape in SHAPES if not torch.equal(multiply_fp8(*given, shape), first)]
    assert different == []
    triton = fp8_product(*given, impl="triton")
    assert triton is not None
    assert torch.equal(triton, first)


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("shape", [(1536, 4096), (4096, 8192), (777, 640), (33, 128), (2, 1152)], ids=str)
def test_few_rows_have_the_bits_of_a_tile(shape: tuple[int, int], extreme: bool) -> None:
    from benthic.kernels.fp8_product.cuda import multiply_fp8
    from benthic.kernels.fp8_product.few import multiply_few
    from benthic.kernels.fp8_product.tiles import FEW

    x, weight = on_device(64, shape, extreme=extreme)
    data, scale, base = weight.data[None], weight.scale[None], torch.rand(1, shape[0], device=CUDA)
    for rows in (1, 2, 7, 8, 9, 16, 17, 31, 33, 63, 64):
        given = x.rows(0, rows)
        for scales, factors, dtype in ((scale, None, torch.float32), (None, base, torch.bfloat16)):
            want = multiply_fp8(given, data, scales, factors, None, dtype, FEW[0])
            assert torch.equal(multiply_few(given, data, scales, factors, dtype), want), rows


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_grouped_products_are_those_of_each_group(sizes: tuple[int, ...]) -> None:
    from benthic.kernels.fp8_product.cuda import multiply_fp8
    from benthic.kernels.fp8_product.tiles import SHAPES

    groups, outputs, inputs = len(sizes), 392, 512
    weight = Fp8Weight.of(torch.randn(groups, outputs, inputs)).to(CUDA)
    x, base = quantize_rows(torch.randn(sum(sizes), inputs, device=CUDA)), torch.rand(groups, outputs, device=CUDA)
    ends = torch.tensor(sizes).cumsum(0).int().to(CUDA)
    tiled, scaled = [], []
    for expert, (size, end) in enumerate(zip(sizes, ends.tolist(), strict=True)):
        rows, one = x.rows(end - size, end), Fp8Weight(weight.data[expert], weight.scale[expert])
        tiled.append(linear(rows, one, torch.float32))
        scaled.append(linear(rows, Fp8Weight(one.data, torch.ones_like(one.scale)), torch.float32) * base[expert])
    assert torch.equal(grouped_linear(x, weight, ends, torch.float32), torch.cat(tiled))
    assert torch.equal(grouped_row_scaled(x, weight.data, base, ends, torch.float32), torch.cat(scaled))
    for shape in SHAPES:
        got = multiply_fp8(x, weight.data, weight.scale, None, ends, torch.bfloat16, shape)
        assert torch.equal(got, torch.cat(tiled).to(torch.bfloat16)), shape
    assert torch.equal(grouped_linear(x, weight, ends, torch.float32, impl="triton"), torch.cat(tiled))


@pytest.mark.parametrize("sizes", [SIZES[1], (256, 256)], ids=str)
@pytest.mark.parametrize("is_tiled", [True, False])
def test_gated_products_are_the_product_then_swiglu_then_rounding(sizes: tuple[int, ...], is_tiled: bool) -> None:
    groups, width, inputs, total = len(sizes), 256, 512, sum(sizes)
    weight = Fp8Weight.of(torch.randn(groups, 2 * width, inputs)).to(CUDA)
    x, ends = quantize_rows(torch.randn(total, inputs, device=CUDA)), torch.tensor(sizes).cumsum(0).int().to(CUDA)
    scale = weight.scale if is_tiled else None
    base = None if is_tiled else torch.rand(groups, 2 * width, device=CUDA) + 0.5
    weights, picks = torch.rand(total, device=CUDA), torch.randperm(total, device=CUDA).int()
    gate_up = fp8_product(x, weight.data, scale, base, ends, torch.float32)
    assert gate_up is not None
    want = quantize_rows(swiglu_ref(gate_up, weights[picks.long()], 10.0, torch.float32))
    got = fp8_gated_product(x, in_eights(weight.data), scale, base, ends, weights, picks, 10.0)
    assert got is not None
    assert torch.equal(got.scale, want.scale)
    # CUDA's sigmoid in torch and ours may differ in their last bit, and so may a code at a tie.
    differ = got.data.float() != want.data.float()
    assert differ.float().mean() < 1e-4


@pytest.mark.parametrize("shape", [(2048, 4096), (384, 640)], ids=str)
def test_gated_products_of_few_rows_are_those_of_many(shape: tuple[int, int]) -> None:
    width, inputs = shape
    weight = Fp8Weight.of(torch.randn(2 * width, inputs)).to(CUDA)
    x, eights = quantize_rows(torch.randn(65, inputs, device=CUDA)), in_eights(weight.data[None])
    base, weights = torch.rand(1, 2 * width, device=CUDA), torch.rand(65, device=CUDA)
    picks = torch.randperm(65, device=CUDA).int()
    for scales, factors, of_row, numbers in ((weight.scale[None], None, None, None), (None, base, weights, picks)):
        whole = fp8_gated_product(x, eights, scales, factors, None, of_row, numbers, 10.0)
        assert whole is not None
        for rows in (1, 3, 8, 9, 31, 64):
            chosen_picks = None if numbers is None else numbers[:rows]
            part = fp8_gated_product(x.rows(0, rows), eights, scales, factors, None, of_row, chosen_picks, 10.0)
            assert part is not None
            assert torch.equal(part.data.view(torch.uint8), whole.data.view(torch.uint8)[:rows]), rows
            assert torch.equal(part.scale, whole.scale[:rows]), rows


def test_a_captured_product_reads_its_groups_at_each_replay() -> None:
    weight = Fp8Weight.of(torch.randn(4, 256, 256)).to(CUDA)
    x, ends = quantize_rows(torch.randn(40, 256, device=CUDA)), torch.tensor([10, 20, 30, 40], device=CUDA).int()
    grouped_linear(x, weight, ends)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = grouped_linear(x, weight, ends)
    for sizes in ([10, 20, 30, 40], [0, 1, 40, 40]):
        ends.copy_(torch.tensor(sizes))
        graph.replay()
        assert torch.equal(got, grouped_linear(x, weight, ends))
