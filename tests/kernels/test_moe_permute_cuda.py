"""The kernels of moe_permute, rounded rows and SwiGLU on a GPU against their references, and nothing waits."""

import pytest
import torch

from benthic.kernels.moe_permute import moe_combine, moe_permute
from benthic.kernels.moe_permute.reference import moe_combine_ref, moe_permute_ref
from benthic.kernels.quantize import round_trip_rows
from benthic.kernels.swiglu import swiglu
from tests.kernels.test_cuda import no_waiting

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("rows", "top_k", "num_experts"), [(1, 6, 256), (133, 4, 16), (8192, 6, 256)])
def test_a_permutation_is_the_references(rows: int, top_k: int, num_experts: int) -> None:
    experts = torch.randint(0, num_experts, (rows, top_k), device="cuda")
    with no_waiting():
        mine = moe_permute(experts, num_experts, 1)
    theirs = moe_permute_ref(experts, num_experts, 1, rows * top_k)
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [1, 7, 133])
def test_a_sum_is_the_references(rows: int, dtype: torch.dtype) -> None:
    slots = torch.randperm(rows * 6, device="cuda").view(rows, 6)
    y, weights = torch.randn(rows * 6, 300, device="cuda").to(dtype), torch.rand(rows, 6, device="cuda")
    for factors in (None, weights):
        assert torch.equal(moe_combine(y, slots, factors), moe_combine_ref(y, factors, slots))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [32, 256, 4096])
def test_rounded_rows_are_the_references(width: int, dtype: torch.dtype) -> None:
    x = (torch.randn(64, width + 8)[:, :width] * torch.logspace(-10, 4, 64)[:, None]).to("cuda", dtype)
    assert torch.equal(round_trip_rows(x), round_trip_rows(x, impl="reference"))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 8e-3), (torch.float32, 2e-6)])
@pytest.mark.parametrize("has_weights", [True, False])
def test_swiglu_is_near_the_reference_and_a_row_keeps_its_bits(
    dtype: torch.dtype, tolerance: float, has_weights: bool
) -> None:
    gate_up = torch.randn(133, 2 * 300, device="cuda").to(dtype) * 8
    weights = torch.rand(133, device="cuda") if has_weights else None
    mine, theirs = swiglu(gate_up, 10.0, weights), swiglu(gate_up, 10.0, weights, impl="reference")
    torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
    one = swiglu(gate_up[7:8], 10.0, None if weights is None else weights[7:8])
    assert torch.equal(one, mine[7:8])
