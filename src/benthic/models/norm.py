"""Norms over the last dimension, each with a gain."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benthic.kernels.precision import wide
from benthic.kernels.rms_norm import rms_norm


class RMSNorm(nn.Module):
    """x * rsqrt(mean(x^2) + eps) * gain in fp32, cast once (model.md notation)."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., dim] -> the same."""
        return rms_norm(x, self.weight, self.eps)


class LayerNorm(nn.Module):
    """(x - mean) * rsqrt(variance + eps) * gain + bias in fp32, cast once: V3.2's index keys (family.md 5)."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., dim] -> the same; a row's bits ignore the rows beside it."""
        x_wide = wide(x)
        gain, bias = self.weight.to(x_wide.dtype), self.bias.to(x_wide.dtype)
        return F.layer_norm(x_wide, (x.shape[-1],), gain, bias, self.eps).to(x.dtype)
