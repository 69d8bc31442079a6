"""The Triton rounding of rows on a CPU, in Triton's interpreter: bits of the reference.

TRITON_INTERPRET=1 pytest tests/kernels/test_quantize_interpreted.py
"""

import os

import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("TRITON_INTERPRET=1 is not set", allow_module_level=True)

from benthic.kernels.quantize import quantize_rows  # noqa: E402
from benthic.kernels.quantize.cases import activations  # noqa: E402
from benthic.kernels.quantize.kernel import quantize_rows_cuda  # noqa: E402


@pytest.mark.parametrize("scale", ["ue8m0", "fp32"])
@pytest.mark.parametrize("extreme", [False, True])
def test_codes_and_scales_are_the_references(scale: str, extreme: bool) -> None:
    x = activations(19, 384, extreme=extreme)
    if extreme:
        x[3, 5], x[4, 200] = float("nan"), float("inf")
    got, want = quantize_rows_cuda(x, scale), quantize_rows(x, scale)  # type: ignore[arg-type]
    assert torch.equal(got.scale.nan_to_num(-1), want.scale.nan_to_num(-1))
    # The interpreter converts NaN to 384; the device does not.
    finite = want.scale.isfinite().repeat_interleave(128, 1)
    assert torch.equal(got.data.float()[finite], want.data.float()[finite])
