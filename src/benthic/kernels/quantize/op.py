"""The doors of quantize: simulated rounding of activations and weights, and the Hadamard transform."""

from collections.abc import Callable
from functools import cache, partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from benthic import formats
from benthic.errors import KernelInputError
from benthic.formats import ScaleFormat
from benthic.kernels.choice import Impl, require_reference, uses_triton_kernel
from benthic.kernels.inputs import require_choice, require_floats
from benthic.kernels.quantize.autograd import straight_through
from benthic.kernels.quantize.reference import (
    quantize_rows_ref,
    round_fp4_ref,
    round_fp4_weight_ref,
    round_fp8_ref,
    round_fp8_weight_ref,
)
from benthic.kernels.quantize.rows import GROUP, QuantizedRows

WeightFormat = Literal["fp8", "fp4", "bf16", "fp32"]


def round_trip_fp8(x: Tensor, group: int, scale: ScaleFormat = "ue8m0") -> Tensor:
    """Q8: what remains of `x` after e4m3 with a scale for each `group` values of the last dim.

    Args:
        x: [..., D], any float dtype; D divisible by `group` (128 before linears, 64 for V4's keys).
        scale: powers of two, or any float32 (V3).

    Returns:
        Like `x`; gradient straight through.

    Raises:
        KernelInputError: D is not a multiple of the group.

    Source: model.md 3.2.
    """
    _check_group(x, group)
    require_choice("scale", scale, ScaleFormat)
    return straight_through(x, partial(round_fp8_ref, group=group, scale=scale))


def round_trip_rows(x: Tensor, scale: ScaleFormat = "ue8m0", *, impl: Impl = "auto") -> Tensor:
    """`round_trip_fp8` of rows in groups of 128, the last of which may be shorter; one launch on CUDA.

    Args:
        x: [R, I], any float dtype.
        scale: powers of two, or any float32 (V3).

    Returns:
        Like `x`; gradient straight through.

    Source: model.md 3.2.
    """
    if not x.dim():
        raise KernelInputError("x is a single number; it must be [R, I]")
    require_floats(x=x)
    require_choice("scale", scale, ScaleFormat)
    needs_gradient = torch.is_grad_enabled() and x.requires_grad
    if x.dim() == 2 and not needs_gradient and uses_triton_kernel(impl, x):
        return _rounding_on_cuda()(x.detach() if x.stride(1) == 1 else x.detach().contiguous(), scale)
    # Zeros move neither the largest magnitude of a group nor the values beside them.
    width = x.shape[-1]
    return round_trip_fp8(F.pad(x, (0, -width % GROUP)), GROUP, scale)[..., :width]


def quantize_rows(x: Tensor, scale: ScaleFormat = "ue8m0", *, impl: Impl = "auto") -> QuantizedRows:
    """The e4m3 codes and float32 scales of rows, for native products; one launch on CUDA.

    Args:
        x: [R, I], any float dtype; I divisible by 128.
        scale: powers of two, or any float32 (V3).

    Returns:
        Rows whose `dequantized` values are those of `round_trip_fp8(x, 128, scale)` to the bit. A group with a value
        that is not finite is NaN as a whole. No gradient.

    Raises:
        KernelInputError: the shape does not fit.

    Source: model.md 3.2.
    """
    if x.dim() != 2 or x.shape[1] % GROUP:
        raise KernelInputError(f"x has shape {tuple(x.shape)}; it must be [R, I] with I a multiple of {GROUP}")
    require_floats(x=x)
    require_choice("scale", scale, ScaleFormat)
    if uses_triton_kernel(impl, x):
        return _on_cuda()(x.detach() if x.stride(1) == 1 else x.detach().contiguous(), scale)
    require_reference(impl, "quantize_rows")
    return quantize_rows_ref(x.detach(), scale)


def round_trip_fp4(x: Tensor, group: int) -> Tensor:
    """Q4: likewise in e2m1 (group 32 for index queries and keys)."""
    _check_group(x, group)
    return straight_through(x, partial(round_fp4_ref, group=group))


def round_weight(weight: Tensor, format: WeightFormat) -> Tensor:
    """The value that the official file would hold.

    Args:
        weight: [..., O, I]; leading dims are experts.
        format: "fp8" (128 x 128 tiles), "fp4" (groups of 32 along the input; I divisible by 32), "bf16" or "fp32".

    Returns:
        Like `weight`; gradient straight through.

    Source: model.md 3.1.
    """
    if format == "fp8":
        return straight_through(weight, round_fp8_weight_ref)
    if format == "fp4":
        _check_group(weight, 32)
        return straight_through(weight, round_fp4_weight_ref)
    if format == "bf16":
        return straight_through(weight, lambda w: w.to(torch.bfloat16).to(w.dtype))
    if format == "fp32":
        return weight
    raise KernelInputError(f"weight format {format!r} is unknown; it is one of 'fp8', 'fp4', 'bf16', 'fp32'")


def hadamard(x: Tensor) -> Tensor:
    """x . H / sqrt(D) over the last dim, H the symmetric orthonormal Sylvester Walsh-Hadamard matrix.

    Args:
        x: [..., D], D a power of two.

    Returns:
        Like `x`; float32 inside. Its own inverse and its own transpose.

    Source: model.md 2.6 step 3.
    """
    size = x.shape[-1] if x.dim() else 0
    if size < 1 or size & (size - 1):
        raise KernelInputError(f"hadamard got {size} values in the last dim; it must be a power of two")
    return formats.hadamard(x)


@cache
def _rounding_on_cuda() -> Callable[[Tensor, ScaleFormat], Tensor]:
    from benthic.kernels.quantize.kernel import round_rows_cuda

    return round_rows_cuda


@cache
def _on_cuda() -> Callable[[Tensor, ScaleFormat], QuantizedRows]:
    from benthic.kernels.quantize.kernel import quantize_rows_cuda

    return quantize_rows_cuda


def _check_group(x: Tensor, group: int) -> None:
    require_floats(x=x)
    if group < 1:
        raise KernelInputError(f"the group is {group}; it must be at least 1")
    if not x.dim() or x.shape[-1] % group:
        raise KernelInputError(
            f"the last dim ({x.shape[-1] if x.dim() else 0}) must be a multiple of the group ({group})"
        )
