"""Which rotary frequencies a layer uses: for everything in that layer, by its compression ratio (model.md 2.3)."""

from torch import Tensor

from benthic.kernels.rope import rope_frequencies
from benthic.models.config import ModelConfig


def layer_frequencies(config: ModelConfig, ratio: int) -> Tensor:
    """float32 [r/2]: plain at `rope_theta` for window layers (ratio 0); YaRN, where a model has it, for all others.

    V4's compressed layers have a base of their own, `compress_rope_theta`.
    """
    theta = config.rope_theta if ratio == 0 or not config.compress_rope_theta else config.compress_rope_theta
    return rope_frequencies(config.qk_rope_head_dim, theta, config.rope_scaling if ratio else None)
