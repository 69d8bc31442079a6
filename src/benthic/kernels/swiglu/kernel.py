"""SwiGLU and the FP8 rounding of its result on CUDA, in one launch; a program takes a run of 128-wide groups."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from benthic.formats import ScaleFormat
from benthic.kernels.quantize.kernel import divided, fp8_scale, to_e4m3
from benthic.kernels.quantize.rows import GROUP, QuantizedRows

_FEW_GROUPS = 4096


@triton.jit
def _swiglu_rows(
    gate_up, data, scale, groups, groups_a_row, row_stride, limit, is_power: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    group = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    column = tl.arange(0, 128)[None, :]
    inside = (group < groups)[:, None]
    place = (group // groups_a_row * row_stride + group % groups_a_row * 128)[:, None] + column
    gate = tl.load(gate_up + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + place + groups_a_row * 128, mask=inside, other=0.0).to(tl.float32)
    # Comparisons that let NaN through.
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    y = gate * tl.sigmoid(gate) * up
    y = y.to(gate_up.dtype.element_ty).to(tl.float32)
    amax_bits = tl.max(y.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)
    factor = fp8_scale(amax_bits, is_power)
    codes = to_e4m3(divided(y, factor[:, None], is_power))
    tl.store(data + group[:, None] * 128 + column, codes, mask=inside)
    tl.store(scale + group, factor, mask=group < groups)


def swiglu_rows_cuda(gate_up: Tensor, limit: float, scale: ScaleFormat) -> QuantizedRows:
    """gate_up [N, 2F] with unit column stride, F a multiple of 128."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    data = torch.empty((rows, width), dtype=torch.float8_e4m3fn, device=gate_up.device)
    factor = torch.empty((rows, width // GROUP), dtype=torch.float32, device=gate_up.device)
    groups = factor.numel()
    if groups:
        block = 2 if groups <= _FEW_GROUPS else 16
        _swiglu_rows[(triton.cdiv(groups, block),)](
            gate_up, data, factor, groups, width // GROUP, gate_up.stride(0), limit, scale == "ue8m0", block
        )
    return QuantizedRows(data, factor)
