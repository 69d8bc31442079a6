"""Manifold-constrained hyper-connections: several residual streams, mixed before and after each sub-layer."""

import torch
from torch import Tensor, nn

from benthic.kernels.hyper_connection import hyper_head, hyper_post, hyper_pre
from benthic.models.config import ModelConfig
from benthic.models.residual import Entered


class HyperSite(nn.Module):
    """One site (attention or ffn) of a layer (model.md 2.2). Holds no parameters of its own.

    The released names lie flat in the block (`hc_attn_fn`, ...), so the block owns the parameters and passes them.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_streams = config.hc_mult
        self.iters, self.eps, self.norm_eps = config.hc_sinkhorn_iters, config.hc_eps, config.rms_norm_eps

    def enter(self, streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor) -> Entered:
        """[R, n, D] streams -> the sub-layer's input and how to merge its output."""
        mix = hyper_pre(streams, fn, scale, base, self.eps, self.iters, self.norm_eps)
        return Entered(mix.input, lambda output: hyper_post(output, streams, mix.post, mix.comb))


class HyperHead(nn.Module):
    """From streams to one vector, before the final norm (model.md 2.9). Parameters are passed likewise."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.eps, self.norm_eps = config.hc_eps, config.rms_norm_eps

    def forward(self, streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor) -> Tensor:
        """[R, n, D] -> [R, D]."""
        return hyper_head(streams, fn, scale, base, self.eps, self.norm_eps)


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
