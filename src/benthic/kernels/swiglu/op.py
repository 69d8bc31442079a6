"""The doors of swiglu: the activation, and the activation rounded for a native product."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.formats import ScaleFormat
from benthic.kernels.choice import Impl, uses_cpu_kernel, uses_triton_kernel
from benthic.kernels.inputs import require_floats
from benthic.kernels.quantize import QuantizedRows, quantize_rows
from benthic.kernels.quantize.rows import GROUP
from benthic.kernels.reference_gradient import with_reference_gradient
from benthic.kernels.swiglu.reference import swiglu_ref


def swiglu(
    gate_up: Tensor,
    limit: float | None,
    weights: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    impl: Impl = "auto",
) -> Tensor:
    """silu(min(gate, limit)) * clamp(up, -limit, limit), times the routing weight before the cast.

    Args:
        gate_up: [N, 2F], gate in the first F columns, up in the last; any float dtype.
        limit: the clamp; only from above for the gate, from both sides for up. Gradients outside are zero. None: no
            clamp, as in models before V4.
        weights: [N] or None, one factor a row.
        out_dtype: dtype of the result, `gate_up.dtype` if None.

    Returns:
        [N, F]; computed in float32.

    Raises:
        KernelInputError: the shapes do not fit.

    Source: model.md 2.8 step 4. The same row has the same bits in any batch.
    """
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise KernelInputError(f"gate_up has shape {tuple(gate_up.shape)}; it must be [N, 2F]")
    if weights is not None and weights.shape != gate_up.shape[:1]:
        raise KernelInputError(f"weights has shape {tuple(weights.shape)}; it must be [{gate_up.shape[0]}]")
    require_floats(gate_up=gate_up, weights=weights)
    dtype = gate_up.dtype if out_dtype is None else out_dtype
    limit = math.inf if limit is None else limit
    if uses_triton_kernel(impl, gate_up):
        return with_reference_gradient(_triton()[1], swiglu_ref, (gate_up, weights), limit, dtype)
    if not uses_cpu_kernel(impl, gate_up):
        return swiglu_ref(gate_up, weights, limit, dtype)
    return with_reference_gradient(_cpu(), swiglu_ref, (gate_up, weights), limit, dtype)


@torch.no_grad()
def swiglu_rows(
    gate_up: Tensor, limit: float | None, scale: ScaleFormat = "ue8m0", *, impl: Impl = "auto"
) -> QuantizedRows:
    """`swiglu` without weights, and the FP8 rounding of its result in groups of 128; one launch on CUDA.

    Args:
        gate_up: [N, 2F], F a multiple of 128; limit: see `swiglu`.
        scale: see `quantize_rows`.

    Returns:
        `quantize_rows(swiglu(gate_up, limit))`: rounded to the dtype of `gate_up` in between. No gradient.

    Raises:
        KernelInputError: the shape does not fit.
    """
    if gate_up.dim() != 2 or gate_up.shape[1] % (2 * GROUP):
        raise KernelInputError(f"gate_up has shape {tuple(gate_up.shape)}; it must be [N, 2F], F a multiple of {GROUP}")
    require_floats(gate_up=gate_up)
    if uses_triton_kernel(impl, gate_up):
        contiguous = gate_up if gate_up.stride(1) == 1 else gate_up.contiguous()
        return _triton()[0](contiguous, math.inf if limit is None else limit, scale)
    return quantize_rows(swiglu(gate_up, limit, impl=impl), scale)


@cache
def _triton() -> tuple[Callable[..., QuantizedRows], Callable[..., Any]]:
    from benthic.kernels.swiglu.kernel import swiglu_rows_cuda, swiglu_triton

    return swiglu_rows_cuda, swiglu_triton


@cache
def _cpu() -> Callable[..., Any]:
    from benthic.kernels.swiglu.cpu import swiglu_cpu

    return swiglu_cpu
