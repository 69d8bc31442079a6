import math

import pytest
import torch

from benthic.errors import KernelInputError
from benthic.formats import ue8m0_decode, ue8m0_encode, ue8m0_scale
from tests.formats.enumeration import UE8M0

ALL_BYTES = torch.arange(256, dtype=torch.uint8)


def test_every_byte_decodes_to_its_power_of_two() -> None:
    decoded = ue8m0_decode(ALL_BYTES)
    assert decoded.dtype == torch.float32
    assert decoded[:255].tolist() == UE8M0[:255]
    assert decoded[255].isnan()


def test_decoding_agrees_with_torch_for_every_byte() -> None:
    scale = ALL_BYTES.view(torch.float8_e8m0fnu)
    torch.testing.assert_close(ue8m0_decode(scale), scale.float(), rtol=0, atol=0, equal_nan=True)


def test_every_byte_survives_decoding_and_encoding() -> None:
    assert torch.equal(ue8m0_encode(ue8m0_decode(ALL_BYTES)).view(torch.uint8), ALL_BYTES)


@pytest.mark.parametrize("value", [0.0, -1.0, 3.0, 2.0**-128, math.inf, 1.0 + 2**-23])
def test_a_scale_that_is_no_power_of_two_is_refused_by_value(value: float) -> None:
    with pytest.raises(KernelInputError, match=r"no power of two from 2\*\*-127 to 2\*\*127"):
        ue8m0_encode(torch.tensor([1.0, value]))


def test_scales_of_another_dtype_are_refused() -> None:
    with pytest.raises(KernelInputError, match=r"torch\.float32"):
        ue8m0_decode(torch.ones(3))


@pytest.mark.parametrize("largest", [448.0, 6.0])
def test_the_scale_of_every_bf16_amax_is_the_smallest_power_of_two_that_fits(largest: float) -> None:
    amax = torch.arange(0x0080, 0x7F80, dtype=torch.int16).view(torch.bfloat16).float()  # every positive normal
    exact = torch.ceil(torch.log2(amax.double() / largest)).clamp(min=-127)
    assert torch.equal(ue8m0_scale(amax, largest).view(torch.uint8).double() - 127, exact)


@pytest.mark.parametrize("largest", [448.0, 6.0])
def test_the_scale_steps_up_exactly_where_amax_passes_the_largest_code(largest: float) -> None:
    exponents = torch.arange(-110, 117)
    unit = torch.ldexp(torch.ones(len(exponents)), exponents)
    edge = unit * largest
    above = edge * (1 + 2**-22)
    assert torch.equal(ue8m0_decode(ue8m0_scale(edge, largest)), unit)
    assert torch.equal(ue8m0_decode(ue8m0_scale(above, largest)), unit * 2)


def test_the_scale_of_infinity_or_nan_is_nan_and_of_zero_the_least() -> None:
    scale = ue8m0_scale(torch.tensor([math.inf, math.nan, 0.0, 1e-45]), 6.0)
    assert scale.view(torch.uint8).tolist() == [255, 255, 0, 0]
