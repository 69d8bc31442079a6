"""The native product of rows and weights in FP8, dense or grouped by expert."""

from benthic.kernels.fp8_product.op import fp8_product

__all__ = ["fp8_product"]
