"""Scores of the lightning indexer, and the entries that it picks by them."""

from benthic.kernels.index_scores.op import index_scores
from benthic.kernels.index_scores.picks import all_visible, pick_entries

__all__ = ["all_visible", "index_scores", "pick_entries"]
