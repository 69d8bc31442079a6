"""Rotary positions: partial (trailing dims), interleaved pairs, and the inverse rotation."""

from benthic.kernels.rope.op import RopeTable, apply_rope, rope_frequencies, rope_table

__all__ = ["RopeTable", "apply_rope", "rope_frequencies", "rope_table"]
