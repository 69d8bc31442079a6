"""moe_experts: nothing lost in packing, sums in one order, fallbacks where the streamed form does not reach."""

import pytest
import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.formats import dequantize_fp4
from benthic.kernels.moe_experts import Fp8Experts, Kind, cases, pack_fp4_experts, routed_experts
from benthic.kernels.moe_experts.layout import to_pieces
from benthic.kernels.moe_route import ExpertRows
from benthic.kernels.quantize import QuantizedRows, quantize_rows

FORMS = {"near": "row", "wide rows": "block", "wide runs": "plain"}


@pytest.mark.parametrize("kind", ["w13", "w2"])
@pytest.mark.parametrize("span", FORMS)
def test_packing_keeps_every_code_and_exponent(kind: Kind, span: cases.Span) -> None:
    codes, scale = cases.fp4(2, 512, 256, span)
    packed = pack_fp4_experts(codes, scale, kind)
    assert packed.form == FORMS[span]
    assert packed.shape == (2, 512, 256)
    assert all(torch.equal(a, b) for a, b in zip(packed.official(), (codes, scale), strict=True))
    assert torch.equal(packed.official(1, 2)[0], codes[1:])
    assert torch.equal(packed.matrix(1), dequantize_fp4(codes[1], scale[1]))


def test_spans_tell_how_far_exponents_lie_apart() -> None:
    codes, scale = torch.full((1, 256, 128), 0x11, dtype=torch.uint8), torch.full((1, 256, 8), 100, dtype=torch.uint8)
    scale[0, 3, 0], scale[0, 7, 1] = 111, 112
    assert pack_fp4_experts(codes, scale, "w2").spans == (12, 12, 1, 256)
    codes[0, 7, 16:32] = 0x80
    packed = pack_fp4_experts(codes, scale, "w2")
    assert packed.spans == (11, 11, 0, 256), "a group of zeros has no exponent that matters"
    assert packed.form == "row"
    assert torch.equal(packed.matrix(0), dequantize_fp4(codes[0], scale[0]))


@pytest.mark.parametrize("shape", [(256, 128), (128, 256), (64, 32)], ids=str)
def test_matrices_of_no_whole_pieces_stay_as_released(shape: tuple[int, int]) -> None:
    codes, scale = cases.fp4(2, *shape)
    packed = pack_fp4_experts(codes, scale, "w13")
    assert packed.form == "plain"
    assert torch.equal(packed.matrix(0), dequantize_fp4(codes[0], scale[0]))


def test_a_word_widens_to_e4m3_by_two_masks_and_a_table() -> None:
    """The kernel's decoding, done on the bytes of a packed piece."""
    codes, scale = cases.fp4(1, 256, 256)
    pieces = to_pieces(codes, scale, "w2")[0, 0, 0]
    words = pieces[:32768].view(torch.int32).view(16, 2, 2, 8, 4, 2, 2).long() & 0xFFFFFFFF
    word = int(words[3, 1, 0, 5, 2, 1, 1])  # slice 3, inputs 128 + 32 .., g 5, t 2, second line
    row, first = 3 * 16 + 2 * 5 + 1, 128 + 32 + 4 * 2
    table = [0, 0x08, 0x10, 0x14, 0x18, 0x1C, 0x20, 0x24]
    low = [table[word >> 4 * i & 7] | (word & 0x80808080) >> 8 * i & 0x80 for i in range(4)]
    high = [table[word >> 16 + 4 * i & 7] | (word << 4 & 0x80808080) >> 8 * i & 0x80 for i in range(4)]
    got = torch.tensor([low, high], dtype=torch.uint8).view(torch.float8_e4m3fn).float() * 2**5
    values = dequantize_fp4(codes[0], torch.full_like(scale[0], 127))[row]
    assert torch.equal(got, torch.stack([values[first : first + 4], values[first + 16 : first + 20]]))


def exact(x: QuantizedRows, routing: ExpertRows, w13: Tensor, w2: Tensor, limit: float) -> Tensor:
    """Every pick by itself in float64, but for the rounding between the products."""
    values = x.data.double() * x.scale.double().repeat_interleave(128, 1)[:, : x.data.shape[1]]
    total = torch.zeros_like(values)
    for row, experts in enumerate(routing.experts.tolist()):
        for k, expert in enumerate(experts):
            gate, up = (w13[expert] @ values[row]).chunk(2)
            y = torch.nn.functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit) * routing.weights[row, k]
            missing = -len(y) % 128
            h = quantize_rows(torch.nn.functional.pad(y.float()[None], (0, missing)))
            h = (h.data.double().unflatten(1, (-1, 128)) * h.scale.double()[..., None]).flatten()[: len(y)]
            total[row] += w2[expert] @ h
    return total


@pytest.mark.parametrize("shape", [(256, 256), (128, 32)], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_the_reference_is_near_float64(rows: int, shape: tuple[int, int]) -> None:
    size, width = shape
    official = [cases.fp4(5, 2 * width, size), cases.fp4(5, size, width)]
    w13, w2 = pack_fp4_experts(*official[0], "w13"), pack_fp4_experts(*official[1], "w2")
    x, routing = cases.rows(rows, size), cases.routing(rows, 5, 3)
    got = routed_experts(x, routing, w13, w2, 2.0)
    want = exact(x, routing, *(dequantize_fp4(*one, dtype=torch.float64) for one in official), 2.0)
    assert got.dtype == torch.float32
    # A value between two FP8 codes goes either way by rounding of the first product: 2^-4 of few values.
    assert (got - want).norm() <= 4e-3 * want.norm()


def test_fp8_experts_take_the_same_way() -> None:
    w13 = Fp8Experts(torch.randn(3, 128, 256).to(torch.float8_e4m3fn), torch.rand(3, 1, 2) / 16)
    w2 = Fp8Experts(torch.randn(3, 256, 64).to(torch.float8_e4m3fn), torch.rand(3, 2, 1) / 16)
    x, routing = cases.rows(4, 256), cases.routing(4, 3, 2)
    want = exact(x, routing, w13.dequantized(torch.float64), w2.dequantized(torch.float64), 10.0)
    assert (routed_experts(x, routing, w13, w2, 10.0) - want).norm() <= 4e-3 * want.norm()


def test_rows_ignore_their_neighbours_and_resting_rows_get_the_shared_output_only() -> None:
    w2 = pack_fp4_experts(*cases.fp4(6, 256, 256), "w2")
    w13 = pack_fp4_experts(*cases.fp4(6, 512, 256), "w13")
    x, routing, shared = cases.rows(13, 256), cases.routing(13, 6, 2), torch.randn(13, 256)
    whole = routed_experts(x, routing, w13, w2, 10.0, shared, torch.bfloat16)
    resting = routed_experts(x, cases.routing(13, 6, 2, live=4), w13, w2, 10.0, shared, torch.bfloat16)
    assert torch.equal(resting[4:], shared[4:].bfloat16())
    for row in (0, 5, 12):
        part = slice(row, row + 1)
        alone = cases.from_picks(routing.experts[part], routing.weights[part], 6)
        one = routed_experts(x.rows(row, row + 1), alone, w13, w2, 10.0, shared[part], torch.bfloat16)
        assert torch.equal(one[0], whole[row])


def test_shapes_that_do_not_fit_are_refused() -> None:
    w13, w2 = (pack_fp4_experts(*cases.fp4(2, 256, 256), kind) for kind in ("w13", "w2"))
    with pytest.raises(KernelInputError, match="w13"):
        routed_experts(cases.rows(1, 256), cases.routing(1, 2, 1), w13, w2, 10.0)
    with pytest.raises(KernelInputError, match="codes have shape"):
        pack_fp4_experts(*(part[:, :100] for part in cases.fp4(2, 256, 256)[:1]), torch.zeros(2, 3, 3).byte(), "w2")
