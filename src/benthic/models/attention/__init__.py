"""Attention of the family: hybrid (V4)."""

from benthic.models.attention.hybrid import HybridAttention

__all__ = ["HybridAttention"]
