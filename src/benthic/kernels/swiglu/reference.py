"""silu(min(gate, limit)) * clamp(up, -limit, limit) * weight, in float32, cast once (model.md 2.8)."""

import torch
from torch import Tensor

from benthic.kernels.precision import silu, wide


def swiglu_ref(gate_up: Tensor, weights: Tensor | None, limit: float, out_dtype: torch.dtype) -> Tensor:
    gate, up = wide(gate_up).chunk(2, dim=-1)
    y = silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    if weights is not None:
        y = y * weights.to(y.dtype)[:, None]
    return y.to(out_dtype)
