"""Which implementation multiplies rows and a weight that are both in FP8."""

import torch
from torch import Tensor

from benthic.kernels.choice import Impl, require_reference
from benthic.kernels.linear.reference import fp8_linear_ref
from benthic.kernels.linear.weights import Fp8Weight
from benthic.kernels.quantize import QuantizedRows


def fp8_linear(x: QuantizedRows, weight: Fp8Weight, out_dtype: torch.dtype, impl: Impl) -> Tensor:
    """y = x W^T, [R, O]; every implementation adds in the order of the reference."""
    require_reference(impl, "linear of FP8 rows and an FP8 weight")
    return fp8_linear_ref(x, weight, out_dtype)
