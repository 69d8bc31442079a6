"""Selection of the best k entries with a total order."""

from benthic.kernels.select_topk.op import select_topk

__all__ = ["select_topk"]
