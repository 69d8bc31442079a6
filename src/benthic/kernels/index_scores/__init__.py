"""Scores of the lightning indexer."""

from benthic.kernels.index_scores.op import index_scores

__all__ = ["index_scores"]
