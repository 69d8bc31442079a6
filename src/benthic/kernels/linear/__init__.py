"""Dense products of rows with a weight."""

from benthic.kernels.linear.op import linear

__all__ = ["linear"]
