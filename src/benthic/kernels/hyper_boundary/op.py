"""The doors of a boundary between sub-layers, and of the exit from the last one."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.formats import ScaleFormat
from benthic.kernels.choice import Impl, uses_cuda_kernel, uses_triton_kernel
from benthic.kernels.hyper_boundary.cuda import adds_picks, fits_cuda, hyper_boundary_cuda, hyper_exit_cuda
from benthic.kernels.hyper_boundary.reference import Boundary, Exit, hyper_boundary_ref, hyper_exit_ref
from benthic.kernels.moe_experts import PickedRows
from benthic.kernels.quantize import QuantizedRows
from benthic.kernels.reference_gradient import with_reference_gradient

__all__ = ["Boundary", "Exit", "hyper_boundary", "hyper_exit"]

FUSED_STREAMS = 4
"""The number of streams that kernels are written for: that of every released model."""
GROUP = 128
WIDEST_CUDA = 4096
"""Beyond this width the CUDA kernel runs, but has not enough registers to pay; Triton's takes over."""


def hyper_boundary(
    output: Tensor | PickedRows | None,
    streams: Tensor,
    post: Tensor | None,
    comb: Tensor | None,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    gain: Tensor,
    eps: float,
    iters: int,
    norm_eps: float,
    *,
    addend: Tensor | None = None,
    linear_scale: ScaleFormat | None = None,
    impl: Impl = "auto",
) -> Boundary:
    """hyper_post of the closing sub-layer, hyper_pre and the RMS norm of the next one, and the rounding of its input.

    Args:
        output: [R, D], the closing sub-layer's result, any float dtype, or in parts that are added up first; None
            where none closes (the first boundary).
        streams: [R, n, D], those that the closing sub-layer's boundary made. Without an output they may be a view of
            one row expanded n times.
        post, comb: float32 [R, n] and [R, n, n] of the closing sub-layer's boundary; None with `output`.
        fn, scale, base: float32 [n (n + 2), n D], [3] and [n (n + 2)] of the next sub-layer (see `hyper_pre`).
        gain: [D] of its norm.
        eps: `hc_eps`; iters: `hc_sinkhorn_iters`; norm_eps: `rms_norm_eps`.
        addend: [R, D] to be added to `output` in float32 before it is rounded to the streams' dtype: the shared
            expert's part beside the routed one's.
        linear_scale: also give the input in FP8 groups of 128 under such scales; None: not.

    Returns:
        Boundary. `streams`, the mixed input and the normed one are each rounded to the streams' dtype, as when the
        operations run alone.

    Raises:
        KernelInputError: the shapes do not fit.

    A row has the same bits in any batch. With float32 or bfloat16 streams on CUDA and n = 4 it takes one launch of CUDA
    C++ or, for other widths than multiples of 256 up to 4096 and without nvcc, two of Triton.
    """
    outputs = streams.shape[1] * (streams.shape[1] + 2)
    rounds = linear_scale is not None
    # One row leaves its codes for routed experts as they read them: a row that stands alone is gathered by nobody.
    is_alone = len(streams) == 1 and rounds and adds_picks(streams) and not torch.is_grad_enabled()
    if isinstance(output, PickedRows):
        kernel = _kernel(impl, output.outputs, output.shared, streams, gain, linear_scale)
        if kernel is not None and kernel.boundary is hyper_boundary_cuda and adds_picks(streams):
            _check(output.shared, streams, post, comb, fn, scale, base, gain, outputs, 3)
            parts, weights = (output.outputs, output.shared, streams, post, comb), (fn, scale, base, gain)
            made = hyper_boundary_cuda(*parts, *weights, eps, iters, norm_eps, rounds, output.slots, is_alone)
            return _boundary(made)
        output = output.summed()
    _check(output, streams, post, comb, fn, scale, base, gain, outputs, 3)
    inputs = (output, addend, streams, post, comb, fn, scale, base, gain)
    kernel = _kernel(impl, output, addend, streams, gain, linear_scale)
    if kernel is None:
        return hyper_boundary_ref(*inputs, eps, iters, norm_eps, linear_scale, _beside(impl))
    if is_alone and kernel.boundary is hyper_boundary_cuda:
        return _boundary(hyper_boundary_cuda(*inputs, eps, iters, norm_eps, rounds, None, is_alone))
    constants = (eps, iters, norm_eps, rounds)
    return _boundary(with_reference_gradient(kernel.boundary, _boundary_parts, inputs, *constants))


def _boundary(made: tuple[Tensor, ...]) -> Boundary:
    """A kernel's tensors as a record."""
    rounded = QuantizedRows(made[4], made[5]) if len(made) > 4 else None
    return Boundary(made[0], made[1], made[2], made[3], rounded, made[6] if len(made) > 6 else None)


def hyper_exit(
    output: Tensor | None,
    streams: Tensor,
    post: Tensor | None,
    comb: Tensor | None,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    gain: Tensor,
    eps: float,
    norm_eps: float,
    *,
    addend: Tensor | None = None,
    impl: Impl = "auto",
) -> Exit:
    """hyper_post of the last sub-layer, hyper_head and the final norm.

    Args:
        fn, scale, base: float32 [n, n D], [1] and [n] (see `hyper_head`); the others as for `hyper_boundary`.

    Returns:
        Exit: the streams, and what goes to the output head.
    """
    _check(output, streams, post, comb, fn, scale, base, gain, streams.shape[1], 1)
    inputs = (output, addend, streams, post, comb, fn, scale, base, gain)
    kernel = _kernel(impl, output, addend, streams, gain, None)
    if kernel is None:
        return hyper_exit_ref(*inputs, eps, norm_eps, _beside(impl))
    return Exit(*with_reference_gradient(kernel.exit, hyper_exit_ref, inputs, eps, norm_eps))


def _boundary_parts(*arguments: Any) -> tuple[Tensor, ...]:
    """The reference, its tensors in a row as the kernel gives them."""
    *rest, is_quantized = arguments
    scale: ScaleFormat | None = "ue8m0" if is_quantized else None
    boundary = hyper_boundary_ref(*(*rest, scale))
    quantized = () if boundary.quantized is None else tuple(boundary.quantized)
    return (boundary.streams, boundary.input, boundary.post, boundary.comb, *quantized)


class _Kernels(NamedTuple):
    boundary: Callable[..., tuple[Tensor, ...]]
    exit: Callable[..., tuple[Tensor, ...]]


def _kernel(
    impl: Impl,
    output: Tensor | None,
    addend: Tensor | None,
    streams: Tensor,
    gain: Tensor,
    linear_scale: ScaleFormat | None,
) -> _Kernels | None:
    """What takes the whole; None: the parts one by one."""
    rounds = linear_scale is None or (linear_scale == "ue8m0" and streams.shape[2] % GROUP == 0)
    if streams.shape[1] != FUSED_STREAMS or not rounds:
        return None
    pays = impl == "cuda" or streams.shape[2] <= WIDEST_CUDA
    if pays and uses_cuda_kernel(impl, streams) and fits_cuda(output, addend, streams, gain):
        return _Kernels(hyper_boundary_cuda, hyper_exit_cuda)
    return _triton() if uses_triton_kernel(impl, streams) else None


def _beside(impl: Impl) -> Impl:
    """How the parts run where no kernel takes the whole."""
    return impl if impl in ("reference", "cpu") else "auto"


def _check(
    output: Tensor | None,
    streams: Tensor,
    post: Tensor | None,
    comb: Tensor | None,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    gain: Tensor,
    num_outputs: int,
    num_scales: int,
) -> None:
    rows, n, size = streams.shape
    if fn.shape != (num_outputs, n * size) or base.shape != (num_outputs,) or scale.numel() != num_scales:
        raise KernelInputError(
            f"fn has shape {tuple(fn.shape)}, scale {tuple(scale.shape)}, base {tuple(base.shape)}; beside streams of "
            f"shape {tuple(streams.shape)} they must be [{num_outputs}, {n * size}], [{num_scales}], [{num_outputs}]"
        )
    if gain.shape != (size,) or (output is not None and output.shape != (rows, size)):
        found = None if output is None else tuple(output.shape)
        raise KernelInputError(
            f"gain has shape {tuple(gain.shape)}, output {found}; they must be [{size}] and [{rows}, {size}]"
        )
    if (output is None) != (post is None) or (output is None) != (comb is None):
        raise KernelInputError("output, post and comb belong together: give all three, or None for each")


@cache
def _triton() -> _Kernels:
    from benthic.kernels.hyper_boundary.kernel import hyper_boundary_triton, hyper_exit_triton

    return _Kernels(hyper_boundary_triton, hyper_exit_triton)
