"""Rows to expert-sorted slots and back."""

from benthic.kernels.moe_permute.op import Permutation, moe_combine, moe_dispatch, moe_permute

__all__ = ["Permutation", "moe_combine", "moe_dispatch", "moe_permute"]
