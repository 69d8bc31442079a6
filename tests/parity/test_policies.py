"""`quantized` is `plain` where nothing is lost: on weights and inputs that their formats hold exactly."""

import pytest
import torch
from torch import Tensor

from benthic.kernels.quantize import hadamard, round_trip_fp4, round_trip_fp8, round_weight
from benthic.models.config import ModelConfig
from benthic.models.linear import Linear
from benthic.models.numerics import Numerics, family_rounding
from benthic.models.released import FLASH, V2, V3, V31, V32

FP4_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def fp8_exact(rows: int, width: int) -> Tensor:
    """Values k / 8 with |k| <= 15: four significant bits, so e4m3 holds them under any scale that is a power of two."""
    return torch.randint(-15, 16, (rows, width)).float() / 8


def fp4_exact(rows: int, width: int) -> Tensor:
    """Values of e2m1 with the largest one in every group of 32, so that each group's scale is 1."""
    values = FP4_VALUES[torch.randint(0, 8, (rows, width))] * torch.randint(0, 2, (rows, width)).mul(2).sub(1)
    values[:, ::32] = 6.0
    return values


def test_linear_layers_agree_bit_for_bit() -> None:
    x, weight = fp8_exact(7, 256), fp8_exact(96, 256)
    assert torch.equal(round_weight(weight, "fp8"), weight)
    results = []
    for policy in ("plain", "quantized"):
        layer = Linear(256, 96, Numerics(policy))
        with torch.no_grad():
            layer.weight.copy_(weight)
            results.append(layer(x))
    assert torch.equal(results[0], results[1])


def test_kv_entries_agree_bit_for_bit() -> None:
    x = fp8_exact(5, 192)
    assert torch.equal(Numerics("quantized").kv_entry(x, 64), Numerics("plain").kv_entry(x, 64))


def test_index_products_agree_bit_for_bit() -> None:
    """The policies differ by a rotation of 64 dims, which cancels in products and is exact here: 64^-0.5 is 1/8."""
    query, key = hadamard(fp4_exact(4, 64)), hadamard(fp4_exact(9, 64))
    plain, quantized = Numerics("plain"), Numerics("quantized")
    expected = plain.index_vector(query) @ plain.index_vector(key).T
    assert torch.equal(quantized.index_vector(query) @ quantized.index_vector(key).T, expected)


def test_inputs_that_do_not_quantise_exactly_differ() -> None:
    x = torch.randn(5, 256)
    assert not torch.equal(Numerics("quantized").linear_input(x), x)


@pytest.mark.parametrize(
    ("config", "scale"), [(V3, "fp32"), (V31, "ue8m0"), (V32, "ue8m0")], ids=["v3", "v3.1", "v3.2"]
)
def test_what_enters_the_products_of_fp8_weights_takes_the_scales_of_the_release(
    config: ModelConfig, scale: str
) -> None:
    x = torch.randn(3, 256)
    found = Numerics("quantized", family_rounding(config)).linear_input(x)
    assert torch.equal(found, round_trip_fp8(x, 128, scale))  # type: ignore[arg-type]


def test_a_family_released_in_bf16_rounds_nothing() -> None:
    numerics, x = Numerics("quantized", family_rounding(V2)), torch.randn(3, 576)
    assert torch.equal(numerics.linear_input(x[:, :512]), x[:, :512])
    assert torch.equal(numerics.kv_entry(x, 64), x)


def test_v32_rounds_its_latents_and_index_vectors_in_groups_of_128_and_v3_neither() -> None:
    entry, vector = torch.randn(3, 576) * 2.0 ** (torch.arange(576) // 64 * 2), torch.randn(3, 128)
    numerics = Numerics("quantized", family_rounding(V32))
    rounded = numerics.kv_entry(entry, 64)
    assert torch.equal(rounded[:, 512:], entry[:, 512:])
    assert torch.equal(rounded[:, :512], round_trip_fp8(entry[:, :512].contiguous(), 128))
    assert torch.equal(numerics.index_vector(vector), round_trip_fp8(hadamard(vector), 128))
    v3 = Numerics("quantized", family_rounding(V3))
    assert torch.equal(v3.kv_entry(entry, 64), entry)


def test_v4_keeps_its_rounding() -> None:
    assert Numerics("quantized", family_rounding(FLASH)) == Numerics("quantized")
    x = torch.randn(3, 192) * 2.0 ** (torch.arange(192) // 64 * 4)
    assert torch.equal(Numerics("quantized").kv_entry(x, 64)[:, :128], round_trip_fp8(x[:, :128].contiguous(), 64))
    assert torch.equal(Numerics("quantized").index_vector(x[:, :64]), round_trip_fp4(hadamard(x[:, :64]), 32))
