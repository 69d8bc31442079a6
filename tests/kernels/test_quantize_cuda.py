"""The Triton rounding of rows against the reference, on the device: equal bits."""

import pytest
import torch

from benthic.kernels.quantize import quantize_rows, round_trip_fp8
from benthic.kernels.quantize.cases import activations

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", ["ue8m0", "fp32"])
@pytest.mark.parametrize(("rows", "width"), [(0, 128), (1, 128), (7, 384), (133, 1024), (4001, 4096)])
def test_codes_and_scales_are_the_references(rows: int, width: int, scale: str, dtype: torch.dtype) -> None:
    x = activations(rows, width, extreme=True).to(dtype)
    if rows > 4:
        x[3, 5], x[4, 130] = float("nan"), float("inf")
    got, want = quantize_rows(x.cuda(), scale), quantize_rows(x, scale)  # type: ignore[arg-type]
    # Bits, since NaN is not equal to itself; the sign of a NaN means nothing.
    assert torch.equal(got.data.cpu().float().nan_to_num(1e9), want.data.float().nan_to_num(1e9))
    assert torch.equal(got.scale.cpu().nan_to_num(-1), want.scale.nan_to_num(-1))
    if rows <= 1:
        assert torch.equal(got.dequantized(dtype), round_trip_fp8(x.cuda(), 128, scale))  # type: ignore[arg-type]


def test_rows_of_a_wider_buffer_are_read_in_place() -> None:
    buffer = torch.randn(9, 640, device="cuda")
    view = buffer[:, 128:512]
    assert torch.equal(quantize_rows(view).data.float(), quantize_rows(view.contiguous()).data.float())
