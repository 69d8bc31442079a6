"""The Triton kernels of moe_experts in Triton's interpreter: every form, odd shapes, resting rows.

    TRITON_INTERPRET=1 pytest tests/kernels/test_moe_experts_interpreted.py

The variable must stand before Triton is imported, so these tests are skipped without it.
"""

import os

import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("TRITON_INTERPRET=1 is not set", allow_module_level=True)

from benthic.kernels.moe_experts import Experts, Fp8Experts, cases, pack_fp4_experts, routed_experts  # noqa: E402
from benthic.kernels.moe_experts.kernel import routed_experts_triton  # noqa: E402

FORMS = ("plain", "row", "block", "fp8")


def experts(form: str) -> tuple[int, Experts, Experts]:
    """(D, w13, w2); plain matrices are narrow, as no whole pieces are."""
    if form == "fp8":
        w13 = Fp8Experts(torch.randn(4, 2 * 96, 256).to(torch.float8_e4m3fn), torch.rand(4, 2, 2) / 16)
        return 256, w13, Fp8Experts(torch.randn(4, 256, 96).to(torch.float8_e4m3fn), torch.rand(4, 2, 1) / 16)
    size, width = (128, 32) if form == "plain" else (256, 256)
    span: cases.Span = "wide rows" if form == "block" else "near"
    w13, w2 = cases.fp4(4, 2 * width, size, span), cases.fp4(4, size, width, span)
    return size, pack_fp4_experts(*w13, "w13"), pack_fp4_experts(*w2, "w2")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 19])
def test_results_are_near_the_reference(form: str, rows: int) -> None:
    size, w13, w2 = experts(form)
    x, routing = cases.rows(rows, size), cases.routing(rows, 4, 2, live=max(1, rows - 2))
    shared = torch.randn(rows, size)
    want = routed_experts(x, routing, w13, w2, 2.0, shared, impl="reference")
    got = routed_experts_triton(x, routing, w13, w2, 2.0, shared, torch.float32)
    # The reference rounds single experts' outputs to bfloat16; codes between the products may fall to either side.
    assert (got - want).norm() <= 4e-3 * (want - shared).norm()
