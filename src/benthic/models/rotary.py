"""Which rotary frequencies a layer uses: for everything in that layer, by its compression ratio (model.md 2.3)."""

from torch import Tensor

from benthic.kernels.rope import rope_frequencies
from benthic.models.config import ModelConfig


def layer_frequencies(config: ModelConfig, ratio: int) -> Tensor:
    """float32 [r/2]: plain at `rope_theta` for window layers, YaRN at `compress_rope_theta` for compressed ones."""
    if ratio == 0:
        return rope_frequencies(config.qk_rope_head_dim, config.rope_theta, None)
    return rope_frequencies(config.qk_rope_head_dim, config.compress_rope_theta, config.rope_scaling)
