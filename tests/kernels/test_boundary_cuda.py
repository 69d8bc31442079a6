"""The boundary on CUDA, by CUDA C++ and by Triton: near float64, and a row's bits are its own."""

from typing import Any

import pytest
import torch
from torch import Tensor

from benthic.kernels.hyper_boundary import Boundary, hyper_boundary, hyper_exit
from benthic.kernels.hyper_boundary.cases import ROW_INPUTS, boundary_inputs, exit_inputs, picked_rows
from benthic.kernels.moe_experts import PickedRows
from benthic.kernels.quantize import quantize_rows

pytestmark = pytest.mark.gpu
ROWS = 300
SIZES = {"cuda": (256, 768, 4096, 7168), "triton": (21, 256, 4096, 7168)}
"""21 and a third cluster size beside the released widths."""
TOLERANCE = {torch.bfloat16: 4e-3, torch.float32: 2e-6}
CASES = [(impl, size) for impl, sizes in SIZES.items() for size in sizes]


def on_cuda(inputs: dict[str, Any], *, exact: bool = False) -> dict[str, Any]:
    """`exact`: in float64, and the output with its addend rounded as the kernel rounds it."""
    moved = {name: value.cuda() if isinstance(value, Tensor) else value for name, value in inputs.items()}
    if not exact:
        return moved
    if moved["addend"] is not None:
        moved["output"] = (moved["output"].float() + moved["addend"].float()).to(moved["streams"].dtype)
        moved["addend"] = None
    return {name: value.double() if isinstance(value, Tensor) else value for name, value in moved.items()}


def parts_of(boundary: Boundary) -> list[Tensor]:
    rounded = boundary.quantized
    codes = [] if rounded is None else [rounded.data.view(torch.uint8), rounded.scale]
    return [boundary.streams, boundary.input, boundary.post, boundary.comb, *codes]


def rows_of(given: dict[str, Any], start: int, count: int) -> dict[str, Any]:
    """Those rows of the inputs, copied: a kernel may ask for aligned rows."""
    cut = {name: given[name] for name in ROW_INPUTS if given[name] is not None}
    return given | {name: value[start : start + count].clone() for name, value in cut.items()}


def assert_near(got: Tensor, exact: Tensor, tolerance: float) -> None:
    assert (got.double() - exact).norm() <= tolerance * exact.norm()


@pytest.mark.parametrize("closing", ["first", "output", "output and addend"])
@pytest.mark.parametrize(("impl", "size"), CASES)
def test_a_boundary_is_near_float64_and_rows_ignore_their_neighbours(impl: Any, size: int, closing: str) -> None:
    given = boundary_inputs(ROWS, torch.bfloat16, size=size, first=closing == "first")
    if closing == "output and addend":
        given["output"], given["addend"] = torch.randn(ROWS, size), torch.randn(ROWS, size).bfloat16()
    scale = "ue8m0" if size % 128 == 0 else None
    here = on_cuda(given)
    got = hyper_boundary(**here, linear_scale=scale, impl=impl)
    exact = hyper_boundary(**on_cuda(given, exact=True), impl="reference")
    for a, b in zip(got[:4], exact[:4], strict=True):
        assert_near(a, b, TOLERANCE[torch.bfloat16])
    if got.quantized is not None:
        rounded = quantize_rows(got.input, impl="reference")
        assert torch.equal(got.quantized.data.view(torch.uint8), rounded.data.view(torch.uint8))
        assert torch.equal(got.quantized.scale, rounded.scale)
    whole = parts_of(got)
    for count in (1, 7, 64, 133):
        for start in (0, 5, ROWS - count):
            part = parts_of(hyper_boundary(**rows_of(here, start, count), linear_scale=scale, impl=impl))
            assert all(torch.equal(a, b[start : start + count]) for a, b in zip(part, whole, strict=True))


@pytest.mark.parametrize(("impl", "size"), CASES)
def test_many_rows_in_another_order_have_the_bits_of_few(impl: Any, size: int) -> None:
    here = on_cuda(boundary_inputs(ROWS, torch.bfloat16, size=size))
    whole = parts_of(hyper_boundary(**here, impl=impl))
    order = torch.randperm(14 * ROWS, device="cuda") % ROWS
    mixed = {name: here[name].index_select(0, order) for name in ROW_INPUTS if here[name] is not None}
    many = parts_of(hyper_boundary(**(here | mixed), impl=impl))
    assert all(torch.equal(a, b.index_select(0, order)) for a, b in zip(many, whole, strict=True))


@pytest.mark.parametrize("rows", [1, 7, 32, 128])
def test_an_output_in_parts_gives_the_bits_of_its_sum(rows: int) -> None:
    given = on_cuda(boundary_inputs(rows, torch.bfloat16, size=4096))
    picked = PickedRows(*(part.cuda() for part in picked_rows(rows, 4096)))
    got = parts_of(hyper_boundary(**(given | {"output": picked}), linear_scale="ue8m0", impl="cuda"))
    summed = parts_of(hyper_boundary(**(given | {"output": picked.summed()}), linear_scale="ue8m0", impl="cuda"))
    assert all(torch.equal(a, b) for a, b in zip(got, summed, strict=True))


@pytest.mark.parametrize(("impl", "size"), CASES)
def test_an_exit_is_near_float64_and_rows_ignore_their_neighbours(impl: Any, size: int) -> None:
    given = exit_inputs(ROWS, torch.bfloat16, size=size)
    here = on_cuda(given)
    got = hyper_exit(**here, impl=impl)
    for a, b in zip(got, hyper_exit(**on_cuda(given, exact=True), impl="reference"), strict=True):
        assert_near(a, b, TOLERANCE[torch.bfloat16])
    part = hyper_exit(**rows_of(here, 5, 7), impl=impl)
    assert all(torch.equal(a, b[5:12]) for a, b in zip(part, got, strict=True))


def test_float32_streams_are_near_float64() -> None:
    given = boundary_inputs(ROWS, size=1152)
    got = hyper_boundary(**on_cuda(given), impl="triton")
    for a, b in zip(got[:4], hyper_boundary(**on_cuda(given, exact=True), impl="reference")[:4], strict=True):
        assert_near(a, b, TOLERANCE[torch.float32])


def test_gradients_are_the_references() -> None:
    given = on_cuda(boundary_inputs(9, size=256))
    grads = {}
    for impl in ("triton", "reference"):
        leaves = {
            name: value.detach().clone().requires_grad_() for name, value in given.items() if isinstance(value, Tensor)
        }
        made = hyper_boundary(**(given | leaves), impl=impl)
        (made.input.square().sum() + made.streams.sum() + made.post.sum() + (made.comb[:, 0] * 3).sum()).backward()
        grads[impl] = {name: leaf.grad for name, leaf in leaves.items()}
    for name, want in grads["reference"].items():
        assert want is not None
        torch.testing.assert_close(grads["triton"][name], want, rtol=1e-4, atol=1e-4 * want.abs().max().item())
