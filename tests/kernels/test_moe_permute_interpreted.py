"""The kernels of moe_permute and of rounded rows against their references, in Triton's interpreter."""

import os

import pytest
import torch

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="only in Triton's interpreter")


@pytest.mark.parametrize(("rows", "top_k", "num_experts"), [(1, 4, 16), (7, 2, 3), (60, 6, 33)])
def test_a_permutation_and_a_sum_are_those_of_the_reference(rows: int, top_k: int, num_experts: int) -> None:
    from benthic.kernels.moe_permute.kernel import moe_combine_triton, moe_permute_triton
    from benthic.kernels.moe_permute.reference import moe_combine_ref, moe_permute_ref

    experts = torch.randint(0, num_experts, (rows, top_k))
    mine = moe_permute_triton(experts, num_experts)
    theirs = moe_permute_ref(experts, num_experts, 1, rows * top_k)
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    y, weights = torch.randn(rows * top_k, 1500), torch.rand(rows, top_k)
    assert torch.equal(moe_combine_triton(y, None, mine.slot), moe_combine_ref(y, None, mine.slot))
    assert torch.equal(moe_combine_triton(y, weights, mine.slot), moe_combine_ref(y, weights, mine.slot))


@pytest.mark.parametrize("scale", ["ue8m0", "fp32"])
@pytest.mark.parametrize("width", [32, 128, 300])
def test_rounded_rows_are_those_of_the_reference(width: int, scale: str) -> None:
    from benthic.kernels.quantize import round_trip_rows
    from benthic.kernels.quantize.kernel import round_rows_cuda

    x = torch.randn(5, width + 3)[:, :width] * torch.logspace(-20, 4, 5)[:, None]
    assert torch.equal(round_rows_cuda(x, scale), round_trip_rows(x, scale))


@pytest.mark.parametrize("has_weights", [True, False])
def test_swiglu_is_near_the_reference(has_weights: bool) -> None:
    from benthic.kernels.swiglu.kernel import swiglu_triton
    from benthic.kernels.swiglu.reference import swiglu_ref

    gate_up, weights = torch.randn(5, 2 * 33) * 8, torch.rand(5) if has_weights else None
    mine, theirs = (swiglu_of(gate_up, weights, 10.0, torch.float32) for swiglu_of in (swiglu_triton, swiglu_ref))
    torch.testing.assert_close(mine, theirs, rtol=2e-6, atol=2e-6)
