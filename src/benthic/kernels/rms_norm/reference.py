"""RMS(x; g) = x * rsqrt(mean(x^2) + eps) * g, in float32, cast once after the gain (model.md, notation)."""

import torch.nn.functional as F
from torch import Tensor

from benthic.kernels.precision import wide


def rms_norm_ref(x: Tensor, gain: Tensor | None, eps: float) -> Tensor:
    x_wide = wide(x)
    gain_wide = None if gain is None else gain.to(x_wide.dtype)
    return F.rms_norm(x_wide, (x.shape[-1],), gain_wide, eps).to(x.dtype)
