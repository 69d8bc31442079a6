"""The native product of rows and weights in FP8, dense or grouped by expert."""

from benthic.kernels.fp8_product.op import fp8_gated_product, fp8_product, in_eights, takes_gated

__all__ = ["fp8_gated_product", "fp8_product", "in_eights", "takes_gated"]
