"""The meaning of a boundary: the operations that it fuses, one after the other."""

from typing import NamedTuple

from torch import Tensor

from benthic.formats import ScaleFormat
from benthic.kernels.choice import Impl
from benthic.kernels.hyper_connection import hyper_head, hyper_post, hyper_pre
from benthic.kernels.precision import wide
from benthic.kernels.quantize import QuantizedRows, quantize_rows
from benthic.kernels.rms_norm import rms_norm


class Boundary(NamedTuple):
    """What lies between two sub-layers.

    streams: [R, n, D], the closing sub-layer's output merged in.
    input: [R, D], the next sub-layer's input, normed.
    post, comb: float32 [R, n] and [R, n, n], with which the next sub-layer's output comes back.
    quantized: `input` in FP8, groups of 128, if it was asked for.
    alone: the same of a row alone in the blocked form that routed experts read (see `picked_experts`), where the kernel
        that ran writes it.
    """

    streams: Tensor
    input: Tensor
    post: Tensor
    comb: Tensor
    quantized: QuantizedRows | None = None
    alone: Tensor | None = None


class Exit(NamedTuple):
    """What leaves the last layer: streams [R, n, D] and hidden [R, D], their mix after the final norm."""

    streams: Tensor
    hidden: Tensor


def merged(
    output: Tensor | None,
    addend: Tensor | None,
    streams: Tensor,
    post: Tensor | None,
    comb: Tensor | None,
    impl: Impl = "auto",
) -> Tensor:
    """The streams [R, n, D] after the closing sub-layer; as they are where none closes. See `hyper_boundary`."""
    if output is None:
        return streams
    assert post is not None and comb is not None, "an output comes back with the post and comb of its boundary"
    if addend is not None:
        output = wide(output) + wide(addend)
    return hyper_post(output.to(streams.dtype), streams, post, comb, impl=impl)


def hyper_boundary_ref(
    output: Tensor | None,
    addend: Tensor | None,
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
    linear_scale: ScaleFormat | None,
    impl: Impl = "reference",
) -> Boundary:
    streams = merged(output, addend, streams, post, comb, impl)
    mix = hyper_pre(streams, fn, scale, base, eps, iters, norm_eps, impl=impl)
    normed = rms_norm(mix.input, gain, norm_eps, impl=impl)
    quantized = None if linear_scale is None else quantize_rows(normed, linear_scale)
    return Boundary(streams, normed, mix.post, mix.comb, quantized)


def hyper_exit_ref(
    output: Tensor | None,
    addend: Tensor | None,
    streams: Tensor,
    post: Tensor | None,
    comb: Tensor | None,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    gain: Tensor,
    eps: float,
    norm_eps: float,
    impl: Impl = "reference",
) -> Exit:
    streams = merged(output, addend, streams, post, comb, impl)
    mixed = hyper_head(streams, fn, scale, base, eps, norm_eps, impl=impl)
    return Exit(streams, rms_norm(mixed, gain, norm_eps, impl=impl))
