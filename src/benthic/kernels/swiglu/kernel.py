"""SwiGLU on CUDA in one launch, alone or with the FP8 rounding of its result: then a program takes groups of 128."""

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


@triton.jit
def _swiglu(gate_up, weights, out, width, row_stride, limit, has_weights: tl.constexpr, columns: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < width
    place = gate_up + row * row_stride + column
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(place + width, mask=inside, other=0.0).to(tl.float32)
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    y = gate * tl.sigmoid(gate) * up
    if has_weights:
        y = y * tl.load(weights + row)
    tl.store(out + row * width + column, y.to(out.dtype.element_ty), mask=inside)


def swiglu_triton(gate_up: Tensor, weights: Tensor | None, limit: float, out_dtype: torch.dtype) -> Tensor:
    """See `swiglu`."""
    gate_up = gate_up if gate_up.stride(1) == 1 else gate_up.contiguous()
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=out_dtype, device=gate_up.device)
    if out.numel():
        columns = min(1024, triton.next_power_of_2(width))
        factors = out if weights is None else weights.float().contiguous()
        _swiglu[(rows, triton.cdiv(width, columns))](
            gate_up, factors, out, width, gate_up.stride(0), limit, weights is not None, columns
        )
    return out


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
