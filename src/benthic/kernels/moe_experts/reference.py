"""Routed experts in plain PyTorch, in the canonical order.

For each pick (row, k) with expert e, everything in float32:

    gate_up = x W13_e^T          y = silu(min(gate, limit)) * clamp(up, -limit, limit) * weight
    h = FP8 of y in groups of 128, power-of-two scales          out = h W2_e^T, rounded to bfloat16

and a row's outputs are added in order of k, then the shared experts' output, and the sum is rounded once. A product
adds its runs of 128 inputs in order: acc += (x8 . w8) * scales, from zero. The official code rounds gate_up and y to
bfloat16 on the way, and adds bfloat16 outputs as here.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from benthic.kernels.linear.reference import linear_ref
from benthic.kernels.moe_experts.weights import RUN, Fp4Experts, Fp8Experts
from benthic.kernels.moe_route import ExpertRows
from benthic.kernels.quantize import QuantizedRows, quantize_rows
from benthic.kernels.swiglu.reference import swiglu_ref

Experts = Fp4Experts | Fp8Experts
OUTPUT_DTYPE = torch.bfloat16
"""In which the outputs of single experts are kept until they are added."""


def routed_experts_ref(
    x: QuantizedRows,
    routing: ExpertRows,
    w13: Experts,
    w2: Experts,
    limit: float,
    shared: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    """See `routed_experts`. A loop over the experts that have rows; their offsets are read by the host."""
    rows, top_k = routing.experts.shape
    outputs = torch.zeros((rows * top_k, w2.shape[1]), dtype=OUTPUT_DTYPE, device=x.data.device)
    weights, order, ends = routing.weights.reshape(-1), routing.order.long(), routing.offsets.tolist()
    for expert, (start, end) in enumerate(zip(ends, ends[1:], strict=False)):
        if end > start:
            picks = order[start:end]
            source = picks // top_k
            gate_up = product(QuantizedRows(x.data[source], x.scale[source]), w13, expert)
            inner = swiglu_ref(gate_up, weights[picks], limit, torch.float32)
            outputs[picks] = product(_rounded(inner), w2, expert).to(OUTPUT_DTYPE)
    return combine_ref(outputs.view(rows, top_k, -1), shared, out_dtype)


def product(x: QuantizedRows, experts: Experts, expert: int) -> Tensor:
    """x [n, I] times one expert's matrix [O, I] -> float32 [n, O]."""
    codes, matrix = x.data.float(), experts.matrix(expert)
    total = codes.new_zeros(codes.shape[0], matrix.shape[0])
    for run, start in enumerate(range(0, codes.shape[1], RUN)):
        part = linear_ref(codes[:, start : start + RUN], matrix[:, start : start + RUN], torch.float32)
        total = total + part * experts.step_scale(expert, run, x.scale[:, run])
    return total


def combine_ref(outputs: Tensor, shared: Tensor | None, out_dtype: torch.dtype) -> Tensor:
    """[R, K, D] added over K in order, then `shared` [R, D], in float32, rounded once."""
    terms = outputs.float().unbind(1)
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return (total if shared is None else total + shared.float()).to(out_dtype)


def _rounded(x: Tensor) -> QuantizedRows:
    """FP8 rows; the last group may be shorter, as in models smaller than the released ones."""
    width = x.shape[1]
    padded = quantize_rows(F.pad(x, (0, -width % RUN)))
    return QuantizedRows(padded.data[:, :width], padded.scale)
