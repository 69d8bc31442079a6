"""Rotation of pairs (a, b) -> (a cos - b sin, a sin + b cos) in some of a vector's dims; the others pass unchanged."""

import torch
from torch import Tensor

from benthic.kernels.precision import wide


def apply_rope_ref(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    """Pairs are neighbours in the last r dims (model.md 2.3). x [R, d] or [R, H, d]; cos, sin [R, r/2]."""
    rotary_dim = 2 * cos.shape[-1]
    plain, turning = torch.split(x, [x.shape[-1] - rotary_dim, rotary_dim], dim=-1)
    a, b = torch.unflatten(wide(turning), -1, (-1, 2)).unbind(-1)  # each [..., r/2]
    turned = torch.stack(_turn(a, b, cos, sin, inverse), dim=-1).flatten(-2)
    return torch.cat((plain, turned.to(x.dtype)), dim=-1)


def apply_rope_halves_ref(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    """Pairs are (i, i + r/2) in the first r dims (family.md 5). x [R, d] or [R, H, d]; cos, sin [R, r/2]."""
    pairs = cos.shape[-1]
    a, b, plain = torch.split(x, [pairs, pairs, x.shape[-1] - 2 * pairs], dim=-1)
    turned = torch.cat(_turn(wide(a), wide(b), cos, sin, inverse), dim=-1)
    return torch.cat((turned.to(x.dtype), plain), dim=-1)


def _turn(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> tuple[Tensor, Tensor]:
    if inverse:
        sin = -sin
    if a.dim() == 3:
        cos, sin = cos[:, None, :], sin[:, None, :]
    return a * cos - b * sin, a * sin + b * cos
