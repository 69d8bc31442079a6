"""Rotation of interleaved pairs (a, b) -> (a cos - b sin, a sin + b cos) in the trailing dims (model.md 2.3)."""

import torch
from torch import Tensor

from benthic.kernels.precision import wide


def apply_rope_ref(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    """x [R, d] or [R, H, d]; cos, sin [R, r/2]; only the last r of the d dims turn, the others pass unchanged."""
    rotary_dim = 2 * cos.shape[-1]
    plain, turning = torch.split(x, [x.shape[-1] - rotary_dim, rotary_dim], dim=-1)
    a, b = torch.unflatten(wide(turning), -1, (-1, 2)).unbind(-1)  # each [..., r/2]
    if inverse:
        sin = -sin
    if x.dim() == 3:
        cos, sin = cos[:, None, :], sin[:, None, :]
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    return torch.cat((plain, turned.to(x.dtype)), dim=-1)
