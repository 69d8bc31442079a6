"""RMS norm with a gain."""

import torch
from torch import Tensor, nn

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
