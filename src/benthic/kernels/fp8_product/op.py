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
    if uses_cuda_kernel(impl, x.data):
        multiply = _cuda()
    elif uses_triton_kernel(impl, x.data):
        multiply = _triton()
    else:
        return None
    dtype = out_dtype if out_dtype in KERNEL_DTYPES else torch.float32
    product: Tensor = multiply(x, data, tile_scale, base, group_ends, dtype)
    return product.to(out_dtype)


def in_eights(weight: Tensor) -> Tensor:
    """[E, 2F, I], gates then ups, as eight gates, eight ups, and so on: what `fp8_gated_product` takes; F % 8 == 0."""
    experts, outputs, inputs = weight.shape
    halves = weight.view(torch.uint8).view(experts, 2, outputs // 16, 8, inputs)
    return halves.transpose(1, 2).reshape(experts, outputs, inputs).view(weight.dtype)


def takes_gated(data: Tensor, impl: Impl = "auto") -> bool:
    """Whether `fp8_gated_product` takes e4m3 weights [..., 2F, I] on their device."""
    return data.shape[-2] % 256 == 0 and uses_cuda_kernel(impl, data)


def fp8_gated_product(
    x: QuantizedRows,
    data: Tensor,
    tile_scale: Tensor | None,
    base: Tensor | None,
    group_ends: Tensor | None,
    row_weight: Tensor | None,
    picks: Tensor | None,
    limit: float,
    *,
    impl: Impl = "auto",
) -> QuantizedRows | None:
    """FP8 rows of silu(min(gate, limit)) * clamp(up, -limit, limit) * weight, or None where no kernel runs.

    (gate, up) = x W_e^T as `fp8_product` forms them, in float32 and not rounded; the values are rounded once, with a
    power-of-two scale for each 128 columns, as `quantize_rows` rounds.

    Args:
        x: [N, I]; sorted by expert if there are `group_ends`.
        data: float8_e4m3fn [E, 2F, I] `in_eights`, F a multiple of 128.
        tile_scale, base: as for `fp8_product`, in order of gates, then ups.
        row_weight: float32, one a row, or one a pick with `picks` int32 [N] naming each row's (`ExpertRows.order`);
            None for ones.
        limit: the clamp; infinity for none.

    Returns:
        [N, F].
    """
    if not takes_gated(data, impl):
        return None
    rows: QuantizedRows = _cuda_gated()(x, data, tile_scale, base, group_ends, row_weight, picks, limit)
    return rows


@cache
def _cuda_gated() -> Callable[..., QuantizedRows]:
    from benthic.kernels.fp8_product.cuda import multiply_gated_fp8

    return multiply_gated_fp8


@cache
def _cuda() -> Callable[..., Tensor]:
    from benthic.kernels.fp8_product.cuda import multiply_fp8

    return multiply_fp8


@cache
def _triton() -> Callable[..., Tensor]:
    from benthic.kernels.fp8_product.kernel import multiply_fp8_triton

    return multiply_fp8_triton
