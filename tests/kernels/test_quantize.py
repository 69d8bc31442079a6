"""quantize: round trips against the formats, straight-through gradients, independence of rows."""

import pytest
import torch

from benthic.errors import KernelInputError
from benthic.formats import dequantize_fp4, dequantize_fp8, quantize_fp4, quantize_fp8
from benthic.kernels.quantize import hadamard, round_trip_fp4, round_trip_fp8, round_weight
from benthic.kernels.quantize.cases import activations
from tests.kernels import laws


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("group", [64, 128])
def test_the_fp8_round_trip_is_the_formats(group: int, extreme: bool) -> None:
    x = activations(12, extreme=extreme)
    quantized = quantize_fp8(x, (1, group))
    assert torch.equal(round_trip_fp8(x, group), dequantize_fp8(*quantized, (1, group)))


def test_the_fp8_round_trip_with_float32_scales_is_the_formats_too() -> None:
    x = activations(12, extreme=False)
    rounded = round_trip_fp8(x, 64, "fp32")
    assert torch.equal(rounded, dequantize_fp8(*quantize_fp8(x, (1, 64), scale_format="fp32"), (1, 64)))
    assert not torch.equal(rounded, round_trip_fp8(x, 64))
    assert torch.equal(round_trip_fp8(torch.zeros(2, 128), 128, "fp32"), torch.zeros(2, 128))


@pytest.mark.parametrize("extreme", [False, True])
def test_the_fp4_round_trip_is_the_formats(extreme: bool) -> None:
    x = activations(12, extreme=extreme)
    assert torch.equal(round_trip_fp4(x, 32), dequantize_fp4(*quantize_fp4(x)))


@pytest.mark.parametrize(("format", "error"), [("fp8", 0.027), ("fp4", 0.115), ("bf16", 0.0017), ("fp32", 0.0)])
def test_weights_round_by_as_much_as_their_format_says(format: str, error: float) -> None:
    w = torch.randn(3, 160, 192)
    relative = ((round_weight(w, format) - w).norm() / w.norm()).item()  # type: ignore[arg-type]
    assert relative == pytest.approx(error, rel=0.1, abs=1e-9)


@pytest.mark.parametrize("format", ["fp8", "fp4", "bf16", "fp32"])
def test_rounding_a_rounded_weight_changes_nothing(format: str) -> None:
    w = round_weight(torch.randn(130, 192), format)  # type: ignore[arg-type]
    assert torch.equal(round_weight(w, format), w)  # type: ignore[arg-type]


def test_gradients_pass_straight_through() -> None:
    x = activations(3).requires_grad_()
    upstream = torch.randn_like(x)
    for rounding in (
        lambda v: round_trip_fp8(v, 64),
        lambda v: round_trip_fp4(v, 32),
        lambda v: round_weight(v, "fp4"),
    ):
        (grad,) = torch.autograd.grad(rounding(x), x, upstream)
        assert torch.equal(grad, upstream)


def test_the_hadamard_transform_is_the_matrix_and_its_own_inverse() -> None:
    matrix = torch.tensor([[(-1.0) ** bin(i & j).count("1") for j in range(16)] for i in range(16)]) / 4
    x = torch.randn(5, 16)
    torch.testing.assert_close(hadamard(x), x @ matrix, rtol=0, atol=1e-6)
    torch.testing.assert_close(hadamard(hadamard(x)), x, rtol=0, atol=1e-6)
    laws.assert_gradients(hadamard, {"x": torch.randn(2, 8, dtype=torch.float64)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_in_any_batch(dtype: torch.dtype) -> None:
    given = {"x": activations(laws.ALL_ROWS).to(dtype)}
    for op in (hadamard, lambda x: round_trip_fp8(x, 64), lambda x: round_trip_fp4(x, 32)):
        laws.assert_rows_ignore_neighbours(op, given, ("x",))


def test_a_width_that_is_no_multiple_of_the_group_is_refused() -> None:
    with pytest.raises(KernelInputError, match=r"\(100\).*\(64\)"):
        round_trip_fp8(torch.zeros(2, 100), 64)
    with pytest.raises(KernelInputError, match="power of two"):
        hadamard(torch.zeros(2, 12))
