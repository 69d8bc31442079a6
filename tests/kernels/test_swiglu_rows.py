"""swiglu_rows: the activation and its rounding in one are the two one after the other."""

import os

import pytest
import torch

from benthic.kernels.quantize import quantize_rows
from benthic.kernels.swiglu import swiglu, swiglu_rows
from benthic.kernels.swiglu.cases import inputs


def gate_up(rows: int, width: int, dtype: torch.dtype = torch.bfloat16, *, extreme: bool = False) -> torch.Tensor:
    return inputs(rows, width=width, extreme=extreme)["gate_up"].to(dtype)


def assert_rounded_alike(got, want) -> None:
    """Of values that differ by one rounding of the activation, codes differ by one step at most, and seldom."""
    assert got.data.shape == want.data.shape and got.scale.shape == want.scale.shape
    if not got.data.numel():
        return
    error = (got.dequantized() - want.dequantized()).abs()
    step = want.dequantized().abs().clamp(min=2.0**-6 * want.scale.amax()) * 2.0**-3
    assert bool((error <= step).all())
    assert (error > 0).float().mean() < 0.01


@pytest.mark.parametrize("scale", ["ue8m0", "fp32"])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_the_two_in_one_are_the_two(rows, scale):
    given = gate_up(rows, 256)
    got, want = swiglu_rows(given, 1.5, scale), quantize_rows(swiglu(given, 1.5), scale)
    assert torch.equal(got.data.view(torch.uint8), want.data.view(torch.uint8))
    assert torch.equal(got.scale, want.scale)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="for Triton's interpreter")
@pytest.mark.parametrize("extreme", [False, True])
def test_the_kernel_gives_it_in_the_interpreter(extreme):
    pytest.importorskip("triton")
    from benthic.kernels.swiglu.kernel import swiglu_rows_cuda

    given = gate_up(7, 256, torch.float32, extreme=extreme)
    want = quantize_rows(swiglu(given, 10.0, impl="reference"))
    assert_rounded_alike(swiglu_rows_cuda(given, 10.0, "ue8m0"), want)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "width"), [(0, 128), (1, 2048), (7, 384), (133, 2048), (4001, 2048)])
@pytest.mark.parametrize("extreme", [False, True])
def test_the_kernel_gives_it_on_the_device(rows, width, dtype, extreme):
    given = gate_up(rows, width, dtype, extreme=extreme)
    got, want = swiglu_rows(given.cuda(), 10.0), quantize_rows(swiglu(given.cuda(), 10.0))
    assert_rounded_alike(got, want)
    if rows > 100:
        alone = swiglu_rows(given[64:71].cuda(), 10.0)
        assert torch.equal(alone.data.view(torch.uint8), got.data[64:71].view(torch.uint8))
        assert torch.equal(alone.scale, got.scale[64:71])
