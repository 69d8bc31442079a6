"""mHC in plain PyTorch, float32 throughout (model.md 2.2 and 2.9).

The Sinkhorn part is its own function with its own gradient, see `sinkhorn.py`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benthic.kernels.hyper_connection.sinkhorn import sinkhorn_recomputing
from benthic.kernels.linear import linear
from benthic.kernels.precision import sigmoid, wide
from benthic.kernels.rms_norm import rms_norm


class HyperMix(NamedTuple):
    """What `hyper_pre` makes of the streams.

    input: [R, D], the sub-layer's input, in the dtype of the streams.
    post: float32 [R, n], the weight of the sub-layer's output in each stream.
    comb: float32 [R, n, n], how streams pass on; summed over its FIRST index (comb^T X).
    """

    input: Tensor
    post: Tensor
    comb: Tensor


def hyper_pre_ref(
    streams: Tensor,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    eps: float,
    iters: int,
    norm_eps: float,
    normalize: Callable[[Tensor, float, int], Tensor] = sinkhorn_recomputing,
) -> HyperMix:
    num_streams = streams.shape[1]
    x = wide(streams)
    logits = _normed_projection(x, fn, norm_eps)
    sizes = [num_streams, num_streams, num_streams * num_streams]
    pre, post, comb = (
        part * scale[i] + offset
        for i, (part, offset) in enumerate(zip(torch.split(logits, sizes, -1), torch.split(base, sizes), strict=True))
    )
    mixed = mix_streams(x, sigmoid(pre) + eps).to(streams.dtype)
    comb = normalize(torch.unflatten(comb, -1, (num_streams, num_streams)), eps, iters)
    return HyperMix(mixed, 2 * sigmoid(post), comb)


def hyper_post_ref(output: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """X'_j = post_j * y + sum_i C_ij X_i, cast once."""
    passed_on = torch.bmm(comb.transpose(1, 2), wide(streams))
    return torch.addcmul(passed_on, post[:, :, None], wide(output)[:, None, :]).to(streams.dtype)


def hyper_head_ref(streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, eps: float, norm_eps: float) -> Tensor:
    x = wide(streams)
    pre = sigmoid(_normed_projection(x, fn, norm_eps) * scale + base) + eps
    return mix_streams(x, pre).to(streams.dtype)


def mix_streams(x: Tensor, pre: Tensor) -> Tensor:
    """sum_i pre_i X_i."""
    return (pre[:, :, None] * x).sum(1)


def _normed_projection(x: Tensor, fn: Tensor, norm_eps: float) -> Tensor:
    """(z . fn^T) * rsqrt(mean z^2 + norm_eps) over the flattened streams; one RMS, no gain.

    On CUDA the norm comes first: there the bits of a mean, as of a library's product, depend on the number of rows.
    """
    z = x.flatten(1)
    if z.is_cuda:
        return linear(rms_norm(z, None, norm_eps), fn)
    return F.linear(z, fn.to(z.dtype)) * torch.rsqrt((z * z).mean(-1, keepdim=True) + norm_eps)
