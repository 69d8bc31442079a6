import math

import pytest
import torch

from benthic.errors import CheckpointError, KernelInputError
from benthic.formats import (
    decode_e2m1,
    dequantize_fp4,
    dequantize_fp8,
    encode_e2m1,
    pack_fp4,
    quantize_fp4,
    recast_fp4_to_fp8,
    ue8m0_decode,
    unpack_fp4,
)
from tests.formats.enumeration import E2M1, E2M1_MAGNITUDES, UE8M0, nearest_code
from tests.formats.test_fp8 import assert_same

ALL_CODES = torch.arange(16, dtype=torch.uint8)
TILE = (128, 128)


def scales(*codes: int) -> torch.Tensor:
    return torch.tensor(codes, dtype=torch.uint8).view(torch.float8_e8m0fnu)


def test_every_code_decodes_to_its_value_with_the_sign_of_zero() -> None:
    assert_same(decode_e2m1(ALL_CODES), torch.tensor(E2M1))


def test_every_bf16_number_rounds_to_the_nearest_code_with_ties_to_even() -> None:
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    x = x[~x.isnan()]
    expected = [nearest_code(min(abs(v), 1e3), E2M1_MAGNITUDES) | 8 * (math.copysign(1, v) < 0) for v in x.tolist()]
    assert encode_e2m1(x).tolist() == expected


def test_values_next_to_a_tie_round_to_their_own_side() -> None:
    grid = torch.tensor(E2M1_MAGNITUDES)
    middle = (grid[1:] + grid[:-1]) / 2
    assert encode_e2m1(middle.nextafter(middle - 1)).tolist() == list(range(7))
    assert encode_e2m1(middle.nextafter(middle + 1)).tolist() == list(range(1, 8))


def test_the_low_half_of_a_byte_is_the_even_column() -> None:
    packed = pack_fp4(torch.tensor([[1, 2, 15, 8]], dtype=torch.uint8))
    assert packed.dtype == torch.int8
    assert packed.view(torch.uint8).tolist() == [[0x21, 0x8F]]
    assert unpack_fp4(packed).tolist() == [[1, 2, 15, 8]]


def test_every_byte_survives_unpacking_and_packing() -> None:
    byte = torch.arange(256, dtype=torch.uint8).view(torch.int8)
    assert torch.equal(pack_fp4(unpack_fp4(byte)), byte)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_code_under_every_scale_dequantises_to_the_float64_product(dtype: torch.dtype) -> None:
    packed = pack_fp4(ALL_CODES).expand(256, 8).contiguous()
    actual = dequantize_fp4(packed, scales(*range(256))[:, None], dtype=dtype)
    exact = torch.tensor([[code * scale for code in E2M1] for scale in UE8M0], dtype=torch.float64)
    assert_same(actual, exact.to(dtype))


def test_weights_that_came_from_fp4_go_back_unchanged_under_every_scale() -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(16, (250, 32), generator=generator).to(torch.uint8)
    codes[::7] &= 0b1010  # rows whose largest magnitude is small, so that the scale shrinks
    values = dequantize_fp4(pack_fp4(codes), scales(*range(1, 251))[:, None])
    assert_same(dequantize_fp4(*quantize_fp4(values)), values)


@pytest.mark.parametrize("columns", [2, 30, 32, 34, 96, 130])
def test_each_group_is_rounded_as_if_alone_the_ragged_one_too(columns: int) -> None:
    x = torch.randn(3, columns) * 10
    packed, scale = quantize_fp4(x)
    assert packed.shape == (3, columns // 2)
    assert scale.shape == (3, -(-columns // 32))
    start = (columns - 1) // 32 * 32
    alone = quantize_fp4(x[:, start:])
    assert torch.equal(packed[:, start // 2 :], alone.packed)
    assert torch.equal(ue8m0_decode(scale)[:, -1:], ue8m0_decode(alone.scale))


def test_a_group_fits_under_its_scale_and_would_not_under_half_of_it() -> None:
    x = torch.randn(64, 32) * torch.logspace(-30, 30, 64)[:, None]
    scale = ue8m0_decode(quantize_fp4(x).scale)[:, 0]
    amax = x.abs().amax(-1)
    assert (amax <= 6 * scale).all()
    assert (amax > 3 * scale).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_group_with_a_value_that_is_not_finite_becomes_nan_and_its_neighbour_does_not(bad: float) -> None:
    x = torch.ones(64)
    x[3] = bad
    back = dequantize_fp4(*quantize_fp4(x))
    assert back[:32].isnan().all()
    assert torch.equal(back[32:], torch.ones(32))


def test_zero_rows_quantise_and_odd_widths_are_refused() -> None:
    empty = quantize_fp4(torch.zeros(0, 64))
    assert dequantize_fp4(*empty).shape == (0, 64)
    with pytest.raises(KernelInputError, match=r"33 columns"):
        quantize_fp4(torch.zeros(2, 33))
    with pytest.raises(KernelInputError, match=r"must be int8"):
        dequantize_fp4(torch.zeros(2, 16), scales(1, 1)[:, None])
    with pytest.raises(KernelInputError, match=r"int32"):
        quantize_fp4(torch.zeros(2, 32, dtype=torch.int32))


@pytest.mark.parametrize("shift", range(15))
def test_recast_to_fp8_is_exact_for_every_code_and_every_pair_of_scales_within_the_range(shift: int) -> None:
    tops = range(shift, 255)
    # One tile per top scale: the first row holds all codes under the top, the second under 2**-shift of it.
    packed = pack_fp4(ALL_CODES).repeat(2, 1).expand(len(tops), 2, 8)
    scale = torch.tensor([[[top], [top - shift]] for top in tops], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    codes, tile = recast_fp4_to_fp8(packed, scale)
    assert tile.view(torch.uint8).flatten().tolist() == [max(top - 6, 0) for top in tops]
    before = dequantize_fp4(packed, scale, dtype=torch.float64)
    assert_same(dequantize_fp8(codes, tile, TILE, dtype=torch.float64), before)


def test_recast_refuses_scales_that_lie_too_far_apart_and_names_the_group() -> None:
    packed = pack_fp4(torch.ones(130, 64, dtype=torch.uint8))
    scale = torch.full((130, 2), 127, dtype=torch.uint8)
    scale[129, 1] = 112  # alone with its own row in the second tile: 15 below
    with pytest.raises(CheckpointError, match=r"group \(129, 1\) has a scale 2\*\*15 below"):
        recast_fp4_to_fp8(packed, scale.view(torch.float8_e8m0fnu))


def test_recast_lets_a_group_of_zeros_have_any_scale() -> None:
    codes = torch.ones(2, 64, dtype=torch.uint8)
    codes[1] = 0
    scale = torch.tensor([[127, 120], [1, 1]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    recast = recast_fp4_to_fp8(pack_fp4(codes), scale)
    assert_same(dequantize_fp8(*recast, TILE), dequantize_fp4(pack_fp4(codes), scale))


def test_recast_refuses_a_scale_that_is_nan() -> None:
    with pytest.raises(CheckpointError, match="NaN"):
        recast_fp4_to_fp8(pack_fp4(torch.ones(1, 32, dtype=torch.uint8)), scales(255)[:, None])


def test_recast_of_ragged_stacked_weights_keeps_every_value() -> None:
    weights = torch.randn(3, 130, 160)
    quantized = quantize_fp4(weights)
    codes, tile = recast_fp4_to_fp8(*quantized)
    assert tile.shape == (3, 2, 2)
    assert_same(dequantize_fp8(codes, tile, TILE), dequantize_fp4(*quantized))
