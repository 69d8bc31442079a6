"""The Triton Sinkhorn against the reference in float64."""

import pytest
import torch

from benthic.kernels.hyper_connection.sinkhorn import sinkhorn_ref

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("rows", [0, 1, 3, 64, 4001])
def test_triton_sinkhorn_and_its_gradient_agree_with_float64(rows: int) -> None:
    from benthic.kernels.hyper_connection.kernel import sinkhorn_cuda

    logits = torch.randn(rows, 4, 4, device="cuda").mul_(2).requires_grad_()
    grad = torch.randn(rows, 4, 4, device="cuda")
    result = sinkhorn_cuda(logits, 1e-6, 20)
    result.backward(grad)
    exact = logits.detach().double().requires_grad_()
    expected = sinkhorn_ref(exact, 1e-6, 20)
    expected.backward(grad.double())
    assert logits.grad is not None
    assert exact.grad is not None
    # 39 steps of fp32 rounding on values below 1.
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=0, atol=4e-6)
