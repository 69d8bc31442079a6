"""The doors of hyper_connection: before a sub-layer, after it, and the head."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, uses_cpu_kernel
from benthic.kernels.hyper_connection.reference import HyperMix, hyper_head_ref, hyper_post_ref, hyper_pre_ref
from benthic.kernels.hyper_connection.sinkhorn import sinkhorn_recomputing
from benthic.kernels.precision import wide
from benthic.kernels.reference_gradient import with_reference_gradient

__all__ = ["HyperMix", "hyper_head", "hyper_post", "hyper_pre", "sinkhorn"]


def hyper_pre(
    streams: Tensor,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    eps: float,
    iters: int,
    norm_eps: float,
    *,
    impl: Impl = "auto",
) -> HyperMix:
    """Mixes n streams into a sub-layer's input, and says how its output and the streams come back.

    a = (z . fn^T) * rsqrt(mean z^2 + norm_eps), z the flattened streams; then, of a * scale + base:
    pre = sigmoid + eps, post = 2 sigmoid, comb = sinkhorn; input = sum_i pre_i X_i.

    Args:
        streams: [R, n, D], any float dtype.
        fn: float32 [n (n + 2), n D], rows pre | post | comb (comb row-major).
        scale: float32 [3], for pre, post, comb.
        base: float32 [n (n + 2)].
        eps: `hc_eps`; iters: `hc_sinkhorn_iters`; norm_eps: `rms_norm_eps`.

    Returns:
        HyperMix; everything float32 but the input, which is cast once.

    Raises:
        KernelInputError: the shapes do not fit.

    Source: model.md 2.2. A row has the same bits in any batch of at least the exactness check's rows.
    """
    _check(streams, fn, scale, base, 3, streams.shape[1] * (streams.shape[1] + 2))
    if streams.is_cuda and impl == "auto":
        return hyper_pre_ref(streams, fn, scale, base, eps, iters, norm_eps, _cuda_sinkhorn())
    if not uses_cpu_kernel(impl, streams):
        return hyper_pre_ref(streams, fn, scale, base, eps, iters, norm_eps)
    inputs = (streams, fn, scale, base)
    return HyperMix(*with_reference_gradient(_cpu_pre(), _cpu_pre_gradient(), inputs, eps, iters, norm_eps))


def hyper_post(output: Tensor, streams: Tensor, post: Tensor, comb: Tensor, *, impl: Impl = "auto") -> Tensor:
    """X'_j = post_j * output + sum_i comb_ij X_i (the sum is over the FIRST index of comb).

    Args:
        output: [R, D], the sub-layer's result.
        streams: [R, n, D], those that `hyper_pre` saw.
        post, comb: float32 [R, n] and [R, n, n] from `hyper_pre`.

    Returns:
        [R, n, D] in the dtype of `streams`; float32 inside, cast once.

    Source: model.md 2.2 step 8.
    """
    if output.shape != (streams.shape[0], streams.shape[2]) or comb.shape[:2] != streams.shape[:2]:
        raise KernelInputError(
            f"output has shape {tuple(output.shape)}, streams {tuple(streams.shape)}, comb {tuple(comb.shape)}; "
            "they must be [R, D], [R, n, D], [R, n, n]"
        )
    if not uses_cpu_kernel(impl, streams):
        return hyper_post_ref(output, streams, post, comb)
    return with_reference_gradient(_cpu_post(), hyper_post_ref, (output, streams, post, comb))


def hyper_head(
    streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, eps: float, norm_eps: float, *, impl: Impl = "auto"
) -> Tensor:
    """Collapses the streams before the last norm: sum_i (sigmoid(a_i scale + base_i) + eps) X_i.

    Args:
        streams: [R, n, D]; fn: float32 [n, n D]; scale: float32 [1]; base: float32 [n].

    Returns:
        [R, D] in the dtype of `streams`.

    Source: model.md 2.9.
    """
    _check(streams, fn, scale, base, 1, streams.shape[1])
    if not uses_cpu_kernel(impl, streams):
        return hyper_head_ref(streams, fn, scale, base, eps, norm_eps)
    return with_reference_gradient(_cpu_head(), hyper_head_ref, (streams, fn, scale, base), eps, norm_eps)


def sinkhorn(comb_logits: Tensor, eps: float, iters: int, *, impl: Impl = "auto") -> Tensor:
    """Softmax over rows, then alternating column and row normalisation, ending on columns.

    Args:
        comb_logits: [R, n, n].
        eps: added to every entry after the softmax and to every divisor.
        iters: column normalisations in all (20); row normalisations are one fewer.

    Returns:
        float32 [R, n, n] (float64 for float64); columns sum to 1 up to eps. The gradient keeps only the input.
    """
    if comb_logits.dim() != 3 or comb_logits.shape[1] != comb_logits.shape[2] or iters < 1:
        raise KernelInputError(
            f"comb_logits has shape {tuple(comb_logits.shape)}, iters is {iters}; they must be [R, n, n] and at least 1"
        )
    logits = wide(comb_logits)
    normalize = _cpu_sinkhorn() if uses_cpu_kernel(impl, logits) else sinkhorn_recomputing
    return normalize(logits, eps, iters)


def _check(streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, num_scales: int, num_outputs: int) -> None:
    fits = streams.dim() == 3 and scale.numel() == num_scales and base.shape[0] == num_outputs
    if not fits or fn.shape != (num_outputs, streams.shape[1] * streams.shape[2]):
        raise KernelInputError(
            f"streams have shape {tuple(streams.shape)}, fn {tuple(fn.shape)}, scale {tuple(scale.shape)}, base "
            f"{tuple(base.shape)}; they must be [R, n, D], [{num_outputs}, n*D], [{num_scales}], [{num_outputs}]"
        )


@cache
def _cuda_sinkhorn() -> Callable[[Tensor, float, int], Tensor]:
    from benthic.kernels.hyper_connection.kernel import sinkhorn_cuda

    return lambda logits, eps, iters: sinkhorn_cuda(logits.contiguous(), eps, iters)


@cache
def _cpu_pre() -> Callable[..., Any]:
    from benthic.kernels.hyper_connection.cpu import hyper_pre_cpu

    return hyper_pre_cpu


@cache
def _cpu_post() -> Callable[..., Any]:
    from benthic.kernels.hyper_connection.cpu import hyper_post_cpu

    return hyper_post_cpu


@cache
def _cpu_head() -> Callable[..., Any]:
    from benthic.kernels.hyper_connection.cpu import hyper_head_cpu

    return hyper_head_cpu


@cache
def _cpu_pre_gradient() -> Callable[..., Any]:
    from benthic.kernels.hyper_connection.sinkhorn_cpu import sinkhorn_trainable

    return partial(hyper_pre_ref, normalize=sinkhorn_trainable)


@cache
def _cpu_sinkhorn() -> Callable[..., Tensor]:
    from benthic.kernels.hyper_connection.sinkhorn_cpu import sinkhorn_trainable

    return sinkhorn_trainable
