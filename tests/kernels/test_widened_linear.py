"""Rows that are not rounded times a weight held in FP8: near float64, rounded as the next product reads it, by rows."""

import os

import pytest
import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.linear import Fp8Weight, widened_linear
from benthic.kernels.quantize import quantize_rows
from benthic.kernels.quantize.reference import quantize_rows_ref

SHAPES = [(1, 128, 128), (3, 256, 384), (8, 128, 512)]
# Half a unit in the last place of bfloat16; the interpreter truncates.
TOLERANCE = 3e-3


def inputs(rows: int, groups: int, outputs: int, width: int) -> tuple[Tensor, Fp8Weight]:
    return torch.randn(rows, groups, width).bfloat16(), Fp8Weight.of(torch.randn(groups, outputs, width) * 0.02)


def exact(x: Tensor, weight: Fp8Weight) -> Tensor:
    return torch.einsum("rgi,goi->rgo", x.double(), weight.dequantized(torch.float64))


def assert_near(got: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> None:
    assert got.shape == expected.shape
    assert (got.double() - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_the_reference_is_near_float64_and_rounds_as_quantize_rows_does(rows, shape):
    x, weight = inputs(rows, *shape)
    y = widened_linear(x, weight)
    assert_near(y, exact(x, weight))
    rounded = widened_linear(x, weight, quantizes=True)
    assert torch.equal(rounded.dequantized(), quantize_rows(y.flatten(1)).dequantized())


def test_shapes_that_do_not_fit_are_refused():
    x, weight = inputs(2, 3, 256, 384)
    with pytest.raises(KernelInputError, match="must be"):
        widened_linear(x[:, :2], weight)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="for Triton's interpreter")
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_the_kernel_is_near_float64_in_the_interpreter(rows):
    pytest.importorskip("triton")
    from benthic.kernels.linear.widened import multiply_widened

    x, weight = inputs(rows, 3, 256, 384)
    y = multiply_widened(x, weight, quantizes=False)
    assert_near(y, exact(x, weight), 2 * TOLERANCE)
    rounded, expected = multiply_widened(x, weight, quantizes=True), quantize_rows_ref(y.flatten(1))
    assert torch.equal(rounded.dequantized(), expected.dequantized())


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(3, 256, 384), (8, 1024, 4096)], ids=str)
def test_rows_are_near_float64_and_ignore_one_another_on_the_device(shape):
    x, weight = inputs(1300, *shape)
    x, weight = x.cuda(), weight.to(torch.device("cuda"))
    whole, rounded = widened_linear(x, weight), widened_linear(x, weight, quantizes=True)
    assert_near(whole, exact(x, weight))
    expected = quantize_rows(whole.flatten(1))
    assert torch.equal(rounded.data.view(torch.uint8), expected.data.view(torch.uint8))
    assert torch.equal(rounded.scale, expected.scale)
    for start, rows in ((0, 1), (700, 7), (17, 31), (64, 64), (5, 133), (100, 511), (1, 600)):
        part = widened_linear(x[start : start + rows], weight)
        assert torch.equal(part, whole[start : start + rows]), rows


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(3, 256, 512), (8, 1024, 4096)], ids=str)
@pytest.mark.parametrize("extreme", [False, True])
def test_few_rows_have_the_bits_of_triton_on_the_device(shape, extreme):
    from benthic.kernels.linear.widened_cuda import takes

    x, weight = inputs(32, *shape)
    if extreme:
        data = torch.randint(0, 256, weight.shape, dtype=torch.uint8)
        data[data & 0x7F == 0x7F] = 1
        scale = weight.scale * 2.0 ** torch.randint(-30, 31, weight.scale.shape)
        x, weight = x * 2.0 ** torch.randint(-10, 11, x.shape), Fp8Weight(data.view(torch.float8_e4m3fn), scale)
    x, weight = x.bfloat16().cuda(), weight.to(torch.device("cuda"))
    for rows in (1, 2, 7, 8, 9, 16, 17, 31, 32):
        assert takes(x[:rows], weight)
        few = widened_linear(x[:rows], weight, quantizes=True, impl="cuda")
        want = widened_linear(x[:rows], weight, quantizes=True, impl="triton")
        assert torch.equal(few.data.view(torch.uint8), want.data.view(torch.uint8)), rows
        assert torch.equal(few.scale, want.scale), rows
