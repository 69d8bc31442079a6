"""The Triton products' logic on a CPU, in Triton's interpreter: odd shapes, segments, groups, gradients.

    TRITON_INTERPRET=1 pytest tests/kernels/test_linear_interpreted.py

The variable must stand before Triton is imported, so these tests are skipped without it. Bits are for the device: the
interpreter's products are numpy's. Its rounding to bfloat16 truncates.
"""

import os

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("TRITON_INTERPRET=1 is not set", allow_module_level=True)

from benthic.kernels.grouped_linear.kernel import multiply_grouped, multiply_grouped_trained  # noqa: E402
from benthic.kernels.linear.kernel import multiply, multiply_trained  # noqa: E402
from benthic.kernels.linear.schedule import Tile, order_of  # noqa: E402

TOLERANCE = {torch.float32: 3e-7, torch.bfloat16: 8e-3}


def assert_near(got: Tensor, exact: Tensor) -> None:
    assert got.shape == exact.shape
    assert (got.double() - exact).norm() <= TOLERANCE[got.dtype] * exact.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(33, 37), (1, 64), (16, 1100), (70, 130)], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 19])
def test_products_are_near_float64_in_one_piece_and_in_segments(
    rows: int, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x, weight = torch.randn(rows, 2, shape[1]).to(dtype), torch.randn(2, *shape).to(dtype)
    exact = torch.einsum("rgi,goi->rgo", x.double(), weight.double())
    for is_split in {False, order_of(*shape, dtype).segments > 1}:
        assert_near(multiply(x, weight, dtype, Tile(16, 64, 4, 3, is_split)), exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", [(0, 1, 0, 2, 17, 0), (5, 5, 5), (0, 0), (0, 40, 0)], ids=str)
def test_grouped_products_and_gradients_are_near_float64(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    ends = torch.tensor(sizes).cumsum(0).int()
    x, weight = torch.randn(sum(sizes), 37).to(dtype), torch.randn(len(sizes), 33, 37).to(dtype)
    leaves, exact = (x, weight), (x.double(), weight.double())
    for leaf in (*leaves, *exact):
        leaf.requires_grad_()
    upstream = torch.randn(sum(sizes), 33).to(dtype)
    got = multiply_grouped_trained(x, weight, ends)
    want = torch.cat([part @ one.t() for part, one in zip(exact[0].split(sizes), exact[1], strict=True)])
    assert_near(got, want)
    for a, b in zip(
        torch.autograd.grad(got, leaves, upstream),
        torch.autograd.grad(want, exact, upstream.double()),
        strict=True,
    ):
        assert_near(a, b)


def test_a_wrong_group_would_be_found() -> None:
    """The negative control: ends moved by one row."""
    x, weight = torch.randn(8, 37), torch.randn(2, 33, 37)
    right, wrong = (multiply_grouped(x, weight, torch.tensor([end, 8], dtype=torch.int32)) for end in (3, 4))
    assert (right != wrong).any(1).tolist() == [False, False, False, True, False, False, False, False]


def test_gradients_of_a_product_are_near_float64() -> None:
    x, weight, upstream = torch.randn(5, 2, 37), torch.randn(2, 33, 37), torch.randn(5, 2, 33)
    leaves, exact = (x, weight), (x.double(), weight.double())
    for leaf in (*leaves, *exact):
        leaf.requires_grad_()
    got = torch.autograd.grad(multiply_trained(*leaves, torch.float32), leaves, upstream)
    want = torch.autograd.grad(torch.einsum("rgi,goi->rgo", *exact), exact, upstream.double())
    for a, b in zip(got, want, strict=True):
        assert_near(a, b)
