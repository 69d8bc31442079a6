"""The Triton FP8 product on a CPU, in Triton's interpreter: odd shapes, groups, scales.

    TRITON_INTERPRET=1 pytest tests/kernels/test_fp8_interpreted.py

Bits are for the device: the interpreter's products are numpy's.
"""

import os

import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("TRITON_INTERPRET=1 is not set", allow_module_level=True)

from benthic.kernels.fp8_product.kernel import multiply_fp8_triton  # noqa: E402
from benthic.kernels.grouped_linear import grouped_linear, grouped_row_scaled  # noqa: E402
from benthic.kernels.linear import Fp8Weight, linear  # noqa: E402
from benthic.kernels.linear.cases import fp8_inputs  # noqa: E402
from benthic.kernels.quantize import quantize_rows  # noqa: E402


@pytest.mark.parametrize("rows", [1, 19, 40])
@pytest.mark.parametrize("shape", [(33, 128), (200, 384)], ids=str)
def test_products_are_near_the_reference(rows: int, shape: tuple[int, int]) -> None:
    given = fp8_inputs(rows, shape)
    x, weight = given["x"], given["weight"]
    got = multiply_fp8_triton(x, weight.data[None], weight.scale[None], None, None, torch.float32)
    want = linear(x, weight, torch.float32)
    assert (got - want).norm() <= 3e-7 * want.norm()


@pytest.mark.parametrize("sizes", [(0, 1, 0, 2, 17, 0), (5, 5, 5)], ids=str)
def test_grouped_products_are_near_the_reference(sizes: tuple[int, ...]) -> None:
    x = quantize_rows(torch.randn(sum(sizes), 256))
    weight, base = Fp8Weight.of(torch.randn(len(sizes), 136, 256)), torch.rand(len(sizes), 136) + 0.5
    ends = torch.tensor(sizes).cumsum(0).int()
    for got, want in (
        (
            multiply_fp8_triton(x, weight.data, weight.scale, None, ends, torch.float32),
            grouped_linear(x, weight, ends, torch.float32),
        ),
        (
            multiply_fp8_triton(x, weight.data, None, base, ends, torch.float32),
            grouped_row_scaled(x, weight.data, base, ends, torch.float32),
        ),
    ):
        assert (got - want).norm() <= 3e-7 * want.norm()
