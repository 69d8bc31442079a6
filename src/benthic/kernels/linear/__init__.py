"""Dense products of rows with a weight."""

from benthic.kernels.linear.layout import by_columns, is_by_columns
from benthic.kernels.linear.op import batched_linear, linear, widened_linear
from benthic.kernels.linear.weights import Fp8Weight, stack_rows

__all__ = ["Fp8Weight", "batched_linear", "by_columns", "is_by_columns", "linear", "stack_rows", "widened_linear"]
