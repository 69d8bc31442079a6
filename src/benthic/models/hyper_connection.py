"""Manifold-constrained hyper-connections: several residual streams, mixed before and after each sub-layer."""

import torch
from torch import Tensor, nn

from benthic.kernels.hyper_boundary import hyper_boundary, hyper_exit, merged
from benthic.models.config import ModelConfig
from benthic.models.numerics import LayerInput, Numerics
from benthic.models.residual import Entered, Unmerged


class HyperSite(nn.Module):
    """One site (attention or ffn) of a layer (model.md 2.2). Holds no parameters of its own.

    The released names lie flat in the block (`hc_attn_fn`, ...), so the block owns the parameters and passes them as
    `mixing`: fn, scale, base.
    """

    def __init__(self, config: ModelConfig, numerics: Numerics) -> None:
        super().__init__()
        self.num_streams, self.numerics = config.hc_mult, numerics
        self.iters, self.eps, self.norm_eps = config.hc_sinkhorn_iters, config.hc_eps, config.rms_norm_eps

    def enter(self, before: Tensor | Unmerged, gain: Tensor, mixing: tuple[Tensor, ...]) -> Entered:
        """See `Site`."""
        fn, scale, base = mixing
        left = before if isinstance(before, Unmerged) else Unmerged(before, None, None, None, None)
        boundary = hyper_boundary(
            left.output,
            left.streams,
            left.post,
            left.comb,
            fn,
            scale,
            base,
            gain,
            self.eps,
            self.iters,
            self.norm_eps,
            addend=left.addend,
            linear_scale=self.numerics.native_scale,
        )
        rounded = self.numerics.linear_input(boundary.input) if boundary.quantized is None else boundary.quantized
        layer_input = LayerInput(boundary.input, rounded, boundary.alone)
        return Entered(layer_input, boundary.streams, boundary.post, boundary.comb)

    def merge(self, before: Tensor | Unmerged) -> Tensor:
        """See `Site`."""
        if isinstance(before, Tensor):
            return before
        return merged(before.summed(), before.addend, before.streams, before.post, before.comb)


class HyperHead(nn.Module):
    """From streams to one vector, and the final norm of it (model.md 2.9). Parameters are passed likewise."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.eps, self.norm_eps = config.hc_eps, config.rms_norm_eps

    def forward(self, streams: Tensor, gain: Tensor, fn: Tensor, scale: Tensor, base: Tensor) -> Tensor:
        """[R, n, D] -> [R, D], normed; `gain` is the norm's."""
        return hyper_exit(None, streams, None, None, fn, scale, base, gain, self.eps, self.norm_eps).hidden


def site_parameters(config: ModelConfig) -> tuple[nn.Parameter, nn.Parameter, nn.Parameter]:
    """Empty fn [n(n+2), n*D], base [n(n+2)], scale [3], all fp32."""
    streams = config.hc_mult
    rows = streams * (streams + 2)
    return (
        nn.Parameter(torch.empty(rows, streams * config.hidden_size)),
        nn.Parameter(torch.empty(rows)),
        nn.Parameter(torch.empty(3)),
    )


def head_parameters(config: ModelConfig) -> tuple[nn.Parameter, nn.Parameter, nn.Parameter]:
    """Empty fn [n, n*D], base [n], scale [1], all fp32."""
    streams = config.hc_mult
    return (
        nn.Parameter(torch.empty(streams, streams * config.hidden_size)),
        nn.Parameter(torch.empty(streams)),
        nn.Parameter(torch.empty(1)),
    )
