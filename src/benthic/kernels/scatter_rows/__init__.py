"""Rows to the slots of a buffer, in place."""

from benthic.kernels.scatter_rows.op import scatter_rows

__all__ = ["scatter_rows"]
