"""Products of rows sorted by expert, rows and weights in FP8."""

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, require_reference
from benthic.kernels.fp8_product import fp8_product
from benthic.kernels.grouped_linear.reference import grouped_fp8_ref, grouped_row_scaled_ref
from benthic.kernels.linear import Fp8Weight
from benthic.kernels.quantize import QuantizedRows


def grouped_fp8_linear(
    x: QuantizedRows, weight: Fp8Weight, group_ends: Tensor, out_dtype: torch.dtype, impl: Impl = "auto"
) -> Tensor:
    """`grouped_linear` of FP8 rows [N, I] and weights [E, O, I]; shapes are checked at that door."""
    product = fp8_product(x, weight.data, weight.scale, None, _ends(group_ends), out_dtype, impl=impl)
    if product is not None:
        return product
    require_reference(impl, "grouped_linear of FP8 rows and weights")
    return grouped_fp8_ref(x, weight, group_ends, out_dtype)


def grouped_row_scaled(
    x: QuantizedRows,
    data: Tensor,
    base: Tensor,
    group_ends: Tensor,
    out_dtype: torch.dtype = torch.bfloat16,
    *,
    impl: Impl = "auto",
) -> Tensor:
    """y = x W_e^T where a weight has one scale an output: what FP4 experts are when widened to e4m3.

    For each 128 of I, ascending, from acc = 0:
        acc = fma(d, row scale, acc)      d: the codes' product over these 128, one chain of e4m3 wgmma in float32
    then y = acc * base[e, o] in float32, rounded once to `out_dtype`.

    Args:
        x: [N, I], rows sorted by expert.
        data: float8_e4m3fn [E, O, I], contiguous.
        base: float32 [E, O].
        group_ends: int32 [E], as for `grouped_linear`; `ExpertRows.offsets[1:]` is that.
        out_dtype: bfloat16 or float32.

    Returns:
        [N, O].

    Raises:
        KernelInputError: the shapes do not fit.
    """
    fits = data.dim() == 3 and x.shape[1] == data.shape[2] and base.shape == data.shape[:2]
    if not fits or group_ends.shape != data.shape[:1]:
        raise KernelInputError(
            f"x has shape {tuple(x.shape)}, data {tuple(data.shape)}, base {tuple(base.shape)}, group_ends "
            f"{tuple(group_ends.shape)}; they must be [N, I], [E, O, I], [E, O], [E]"
        )
    product = fp8_product(x, data, None, base.contiguous(), _ends(group_ends), out_dtype, impl=impl)
    if product is not None:
        return product
    require_reference(impl, "grouped_row_scaled")
    return grouped_row_scaled_ref(x, data, base, group_ends, out_dtype)


def _ends(group_ends: Tensor) -> Tensor:
    return group_ends.to(torch.int32).contiguous()
