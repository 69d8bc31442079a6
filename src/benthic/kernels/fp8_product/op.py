"""The door of fp8_product, which `linear` and `grouped_linear` pass for rows and weights in FP8."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from benthic.kernels.choice import Impl, uses_cuda_kernel, uses_triton_kernel
from benthic.kernels.quantize import QuantizedRows

KERNEL_DTYPES = (torch.bfloat16, torch.float32)


def fp8_product(
    x: QuantizedRows,
    data: Tensor,
    tile_scale: Tensor | None,
    base: Tensor | None,
    group_ends: Tensor | None,
    out_dtype: torch.dtype,
    *,
    impl: Impl = "auto",
) -> Tensor | None:
    """y = x W_e^T by a kernel, or None where the caller's reference is to be taken.

    For each 128 of I, ascending, from acc = 0:
        acc = fma(d, row scale * tile scale, acc)   d: the codes' product over these 128, in float32
    then y = acc * base, where there is one; rounded once to `out_dtype`.

    Args:
        x: [N, I]; sorted by expert if there are `group_ends`.
        data: float8_e4m3fn [E, O, I], contiguous.
        tile_scale: float32 [E, ceil(O / 128), I / 128] contiguous, or None for ones.
        base: float32 [E, O] contiguous, or None for ones.
        group_ends: int32 [E] contiguous, on the device; None for one expert of all rows.
        out_dtype: of the result [N, O].

    A row has the same bits in any batch and grouping. The host reads nothing from the device.
    """
    if impl == "cuda" and uses_cuda_kernel(impl, x.data):
        multiply = _cuda()
    elif uses_triton_kernel(impl, x.data):
        multiply = _triton()
    else:
        return None
    dtype = out_dtype if out_dtype in KERNEL_DTYPES else torch.float32
    product: Tensor = multiply(x, data, tile_scale, base, group_ends, dtype)
    return product.to(out_dtype)


@cache
def _cuda() -> Callable[..., Tensor]:
    from benthic.kernels.fp8_product.cuda import multiply_fp8

    return multiply_fp8


@cache
def _triton() -> Callable[..., Tensor]:
    from benthic.kernels.fp8_product.kernel import multiply_fp8_triton

    return multiply_fp8_triton
