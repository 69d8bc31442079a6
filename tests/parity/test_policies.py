"""`quantized` is `plain` where nothing is lost: on weights and inputs that their formats hold exactly."""

import torch
from torch import Tensor

from benthic.kernels.quantize import hadamard, round_weight
from benthic.models.linear import Linear
from benthic.models.numerics import Numerics

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
