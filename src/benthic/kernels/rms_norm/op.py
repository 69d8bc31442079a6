"""The door of rms_norm."""

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, uses_cpu_kernel, uses_triton_kernel
from benthic.kernels.inputs import require_floats
from benthic.kernels.reference_gradient import with_reference_gradient
from benthic.kernels.rms_norm.reference import rms_norm_ref


def rms_norm(x: Tensor, gain: Tensor | None, eps: float, *, impl: Impl = "auto") -> Tensor:
    """Divides each vector by its root mean square, then multiplies by a gain.

    Args:
        x: [..., D], any float dtype.
        gain: [D] or None, any float dtype; taken to float32.
        eps: added to the mean of squares.

    Returns:
        Like `x`; computed in float32 and cast once, after the gain.

    Raises:
        KernelInputError: the gain does not fit.

    Source: model.md, notation. The same row has the same bits in any batch.
    """
    if not x.dim():
        raise KernelInputError("x is a single number; it must be [..., D]")
    require_floats(x=x, gain=gain)
    if gain is not None and gain.shape != x.shape[-1:]:
        raise KernelInputError(
            f"gain has shape {tuple(gain.shape)}; x has {tuple(x.shape)}, so it must be [{x.shape[-1]}]"
        )
    if uses_triton_kernel(impl, x):
        return with_reference_gradient(_triton(), rms_norm_ref, (x, gain), eps)
    if not uses_cpu_kernel(impl, x):
        return rms_norm_ref(x, gain, eps)
    return with_reference_gradient(_cpu(), rms_norm_ref, (x, gain), eps)


@cache
def _triton() -> Callable[..., Any]:
    from benthic.kernels.rms_norm.kernel import rms_norm_triton

    return rms_norm_triton


@cache
def _cpu() -> Callable[..., Any]:
    from benthic.kernels.rms_norm.cpu import rms_norm_cpu

    return rms_norm_cpu
