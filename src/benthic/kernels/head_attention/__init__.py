"""Attention in which every head has keys and values of its own, over the tiles of sparse attention."""

from benthic.kernels.head_attention.op import head_attention

__all__ = ["head_attention"]
