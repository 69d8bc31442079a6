"""Rotary positions: partial (some dims), pairs of neighbours or of halves, and the inverse rotation."""

from benthic.kernels.rope.op import Pairing, RopeTable, apply_rope, rope_frequencies, rope_table

__all__ = ["Pairing", "RopeTable", "apply_rope", "rope_frequencies", "rope_table"]
