"""Attention of the family: hybrid (V4) and latent (V2, V3, V3.2)."""

from benthic.models.attention.hybrid import HybridAttention
from benthic.models.attention.latent import LatentAttention

__all__ = ["HybridAttention", "LatentAttention"]
