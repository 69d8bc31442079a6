"""One product an expert, over contiguous groups of rows."""

from benthic.kernels.grouped_linear.fp8 import grouped_row_scaled
from benthic.kernels.grouped_linear.op import grouped_linear

__all__ = ["grouped_linear", "grouped_row_scaled"]
