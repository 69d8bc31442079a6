import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benthic.errors import KernelInputError
from benthic.formats import Block, ScaleFormat, dequantize_fp8, quantize_fp8, ue8m0_decode
from benthic.formats.fp8 import WEIGHT_FLOOR
from tests.formats.enumeration import E4M3, E4M3_MAGNITUDES, UE8M0, nearest_code

ALL_CODES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
ALL_SCALES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e8m0fnu)
BLOCKS: list[Block] = [(128, 128), (1, 128), (1, 64)]


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal bits, the sign of zero included; NaN equals NaN."""
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    number = ~expected.isnan()
    assert torch.equal(actual.signbit()[number], expected.signbit()[number])


def table_of_all_products() -> torch.Tensor:
    """float64 [256 scales, 256 codes] by multiplication in Python."""
    return torch.tensor([[code * scale for code in E4M3] for scale in UE8M0], dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_every_code_under_every_scale_dequantises_to_the_float64_product(dtype: torch.dtype) -> None:
    codes = ALL_CODES.expand(256, 256).contiguous()
    actual = dequantize_fp8(codes, ALL_SCALES[:, None], (1, 256), dtype=dtype)
    exact = table_of_all_products()
    assert_same(actual, exact.to(dtype) if dtype != torch.bfloat16 else exact.float().to(dtype))


def test_float32_holds_every_product_that_does_not_overflow_exactly() -> None:
    exact = table_of_all_products()
    finite = exact.abs() < 2.0**128
    assert torch.equal(exact.float().double()[finite], exact[finite])


def test_values_round_to_the_nearest_code_with_ties_to_even() -> None:
    grid = torch.tensor(E4M3_MAGNITUDES, dtype=torch.float64)
    middle = ((grid[1:] + grid[:-1]) / 2).float()
    up, down = middle.nextafter(middle + 1), middle.nextafter(middle - 1)
    values = torch.cat([grid.float(), middle, up, down])
    values = torch.cat([values, -values])
    block = (1, len(values) + 1)
    # 448 fixes the scale at 1.
    codes, scale = quantize_fp8(torch.cat([values, torch.tensor([448.0])]), block)
    assert ue8m0_decode(scale).tolist() == [1.0]
    expected = [nearest_code(v, E4M3_MAGNITUDES) | (0x80 if math.copysign(1, v) < 0 else 0) for v in values.tolist()]
    assert codes.view(torch.uint8)[:-1].tolist() == expected


@pytest.mark.parametrize("block", BLOCKS)
def test_weights_that_came_from_fp8_go_back_unchanged_under_every_scale(block: Block, seed: int) -> None:
    rows, columns = block
    finite = [code for code in range(256) if code & 0x7F != 0x7F]
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(finite), (255 * rows, columns), generator=generator)
    codes = torch.tensor(finite, dtype=torch.uint8)[picks].view(torch.float8_e4m3fn)
    scale = ALL_SCALES[:247, None]  # 448 * 2**119 is the largest below overflow in float32
    values = dequantize_fp8(codes[: 247 * rows], scale, block)
    again = quantize_fp8(values, block, floor=WEIGHT_FLOOR)
    assert_same(dequantize_fp8(*again, block), values)


@pytest.mark.parametrize("scale_format", ["ue8m0", "fp32"])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("shape", [(1, 1), (128, 128), (129, 257), (300, 63), (2, 130, 65)])
def test_each_block_is_rounded_as_if_alone_ragged_ones_too(
    shape: tuple[int, ...], block: Block, scale_format: ScaleFormat
) -> None:
    x = torch.randn(shape) * torch.logspace(-6, 6, shape[-1])
    codes, scale = quantize_fp8(x, block, scale_format=scale_format)
    assert codes.shape == x.shape
    rows, columns = block
    row, column = ((shape[-2] - 1) // rows) * rows, ((shape[-1] - 1) // columns) * columns
    alone = quantize_fp8(x[..., row:, column:].contiguous(), block, scale_format=scale_format)
    assert torch.equal(codes[..., row:, column:].view(torch.uint8), alone.codes.view(torch.uint8))
    assert torch.equal(ue8m0_or_float(scale)[..., -alone.scale.shape[-2] :, -1:], ue8m0_or_float(alone.scale))


def ue8m0_or_float(scale: torch.Tensor) -> torch.Tensor:
    return scale if scale.dtype == torch.float32 else ue8m0_decode(scale)


def test_float32_scales_are_amax_over_448_and_reach_the_largest_code() -> None:
    x = torch.randn(5, 256)
    codes, scale = quantize_fp8(x, (1, 128), scale_format="fp32")
    assert torch.equal(scale, x.abs().unflatten(-1, (2, 128)).amax(-1) / 448.0)
    assert torch.equal(codes.float().abs().unflatten(-1, (2, 128)).amax(-1), torch.full((5, 2), 448.0))


def test_small_activations_share_the_scale_of_the_floor() -> None:
    _, scale = quantize_fp8(torch.tensor([1e-9, 0.0]), (1, 2))
    assert ue8m0_decode(scale).item() == 2.0 ** math.ceil(math.log2(1e-4 / 448))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("scale_format", ["ue8m0", "fp32"])
def test_a_block_with_a_value_that_is_not_finite_becomes_nan_and_its_neighbour_does_not(
    bad: float, scale_format: ScaleFormat
) -> None:
    x = torch.ones(1, 256)
    x[0, 3] = bad
    back = dequantize_fp8(*quantize_fp8(x, (1, 128), scale_format=scale_format), (1, 128))
    assert back[0, :128].isnan().all()
    assert torch.equal(back[0, 128:], torch.ones(128))


@pytest.mark.parametrize("block", BLOCKS)
def test_zero_rows_and_zeros_quantise(block: Block) -> None:
    empty = quantize_fp8(torch.zeros(0, 200), block)
    assert empty.codes.shape == (0, 200)
    assert empty.scale.shape == (0, 2 if block[1] == 128 else 4)
    assert dequantize_fp8(*empty, block).shape == (0, 200)
    assert_same(dequantize_fp8(*quantize_fp8(torch.tensor([[0.0, -0.0]]), block), block), torch.tensor([[0.0, -0.0]]))


def test_non_contiguous_inputs_give_the_same_codes() -> None:
    x = torch.randn(130, 70)
    direct, strided = quantize_fp8(x.T.contiguous(), (128, 128)), quantize_fp8(x.T, (128, 128))
    assert torch.equal(direct.codes.view(torch.uint8), strided.codes.view(torch.uint8))


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=70))
def test_the_error_is_at_most_half_a_step(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    codes, scale = quantize_fp8(x, (1, 64))
    error = (dequantize_fp8(codes, scale, (1, 64), dtype=torch.float64) - x.double()).abs()
    steps = ue8m0_decode(scale).double().repeat_interleave(64)[: len(x)]
    # Three mantissa bits: half a step is 2**-4 of the value, or 2**-10 of the scale among the subnormals.
    assert (error <= torch.maximum(x.double().abs() * 2**-4, steps * 2**-10)).all()


def test_a_scale_of_the_wrong_shape_is_refused_with_the_right_one() -> None:
    codes = torch.zeros(130, 130).to(torch.float8_e4m3fn)
    with pytest.raises(KernelInputError, match=r"\(1, 2\).*must be \(2, 2\)"):
        dequantize_fp8(codes, torch.ones(1, 2), (128, 128))


def test_inputs_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(KernelInputError, match=r"int64"):
        quantize_fp8(torch.ones(3, 3, dtype=torch.int64), (1, 128))
    with pytest.raises(KernelInputError, match=r"too few dimensions"):
        quantize_fp8(torch.ones(3), (128, 128))
    with pytest.raises(KernelInputError, match=r"positive sides"):
        quantize_fp8(torch.ones(3), (1, 0))
    with pytest.raises(KernelInputError, match=r"must be float8_e4m3fn"):
        dequantize_fp8(torch.ones(3, 3), torch.ones(3, 1), (1, 128))
