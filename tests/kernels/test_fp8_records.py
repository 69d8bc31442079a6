"""Rows and weights in FP8: their records, and products of them by the reference."""

import pytest
import torch

from benthic.errors import KernelInputError
from benthic.kernels.grouped_linear import grouped_linear, grouped_row_scaled
from benthic.kernels.linear import Fp8Weight, linear, stack_rows
from benthic.kernels.linear.cases import fp8_inputs
from benthic.kernels.quantize import QuantizedRows, quantize_rows, round_trip_fp8, round_weight
from benthic.kernels.quantize.cases import activations

ROWS = (1, 7, 64, 133)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", ["ue8m0", "fp32"])
@pytest.mark.parametrize("extreme", [False, True])
def test_quantized_rows_hold_what_the_round_trip_leaves(dtype: torch.dtype, scale: str, extreme: bool) -> None:
    x = activations(12, 256, extreme=extreme).to(dtype)
    quantized = quantize_rows(x, scale)  # type: ignore[arg-type]
    assert torch.equal(quantized.dequantized(dtype), round_trip_fp8(x, 128, scale))  # type: ignore[arg-type]
    assert quantized.scale.shape == (12, 2)
    assert quantized.shape == (12, 256)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_group_that_is_not_finite_becomes_nan_and_its_neighbours_do_not(bad: float) -> None:
    x = activations(3, 256)
    x[1, 130] = bad
    is_nan = quantize_rows(x).dequantized().isnan().view(3, 2, 128)
    assert is_nan[1, 1].all()
    assert is_nan.sum() == 128


def test_no_rows_are_quantized_to_none_and_a_width_off_the_group_is_refused() -> None:
    assert quantize_rows(torch.empty(0, 256)).scale.shape == (0, 2)
    with pytest.raises(KernelInputError, match="multiple of 128"):
        quantize_rows(torch.zeros(2, 100))


def test_an_fp8_weight_holds_the_official_rounding() -> None:
    weight = torch.randn(2, 160, 192)
    held = Fp8Weight.of(weight)
    assert held.scale.shape == (2, 2, 2)
    assert torch.equal(held.dequantized(), round_weight(weight, "fp8"))
    assert torch.equal(Fp8Weight.of(held.dequantized()).dequantized(), held.dequantized())


def test_stacked_weights_give_the_columns_of_their_parts() -> None:
    parts = [Fp8Weight.of(torch.randn(outputs, 256)) for outputs in (256, 128, 40)]
    x = quantize_rows(torch.randn(5, 256))
    apart = torch.cat([linear(x, part, torch.float32) for part in parts], 1)
    # A library on the CPU may add in another order for another number of outputs.
    torch.testing.assert_close(linear(x, stack_rows(parts), torch.float32), apart, rtol=0, atol=1e-4)
    with pytest.raises(KernelInputError, match="must fill 128s"):
        stack_rows(parts[::-1])


def test_a_weight_with_the_wrong_scales_is_refused() -> None:
    with pytest.raises(KernelInputError, match=r"\(2, 2\)"):
        Fp8Weight(torch.zeros(200, 256).to(torch.float8_e4m3fn), torch.ones(1, 2))


@pytest.mark.parametrize("shape", [(48, 128), (200, 384), (1, 256)], ids=str)
def test_products_are_near_float64_and_a_row_has_the_same_bits_in_any_batch(shape: tuple[int, int]) -> None:
    given = fp8_inputs(max(ROWS), shape)
    x, weight = given["x"], given["weight"]
    whole = linear(x, weight, torch.float32)
    exact = x.dequantized(torch.float64) @ weight.dequantized(torch.float64).t()
    # Sums of 128 exact products in float32, and one more addition a step.
    bound = x.dequantized(torch.float64).abs() @ weight.dequantized(torch.float64).abs().t() * 140 * 2.0**-24
    assert ((whole - exact).abs() <= bound).all()
    assert torch.equal(linear(x, weight), whole.to(torch.bfloat16))
    for rows in ROWS:
        order = torch.randperm(max(ROWS))[:rows]
        part = QuantizedRows(x.data[order], x.scale[order])
        assert torch.equal(linear(part, weight, torch.float32), whole[order])


def test_pairs_with_one_side_in_fp8_multiply_the_values() -> None:
    given = fp8_inputs(5, (48, 128))
    x, weight = given["x"], given["weight"]
    assert torch.equal(linear(x, weight.dequantized(), torch.float32), linear(x.dequantized(), weight.dequantized()))
    assert torch.equal(linear(x.dequantized(), weight), linear(x.dequantized(), weight.dequantized()))


@pytest.mark.parametrize("sizes", [(0, 1, 0, 2, 17, 0), (5, 5, 5), (0, 0)], ids=str)
def test_grouped_products_are_those_of_each_group(sizes: tuple[int, ...]) -> None:
    x = quantize_rows(torch.randn(sum(sizes), 256))
    weight = Fp8Weight.of(torch.randn(len(sizes), 136, 256))
    ends = torch.tensor(sizes).cumsum(0).int()
    got = grouped_linear(x, weight, ends)
    assert got.shape == (sum(sizes), 136)
    base = torch.rand(len(sizes), 136) + 0.5
    scaled = grouped_row_scaled(x, weight.data, base, ends, torch.float32)
    for expert, (size, end) in enumerate(zip(sizes, ends.tolist(), strict=True)):
        rows = slice(end - size, end)
        one = Fp8Weight(weight.data[expert], weight.scale[expert])
        assert torch.equal(got[rows], linear(x.rows(end - size, end), one))
        plain = Fp8Weight(one.data, torch.ones_like(one.scale))
        assert torch.equal(scaled[rows], linear(x.rows(end - size, end), plain, torch.float32) * base[expert])


def test_grouped_products_of_mixed_kinds_are_refused() -> None:
    weight = Fp8Weight.of(torch.randn(1, 128, 128))
    with pytest.raises(KernelInputError, match="both must be"):
        grouped_linear(torch.randn(3, 128), weight, torch.tensor([3], dtype=torch.int32))
