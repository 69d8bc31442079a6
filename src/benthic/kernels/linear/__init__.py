"""Dense products of rows with a weight."""

from benthic.kernels.linear.layout import by_columns, is_by_columns
from benthic.kernels.linear.op import batched_linear, linear

__all__ = ["batched_linear", "by_columns", "is_by_columns", "linear"]
