"""The doors of linear."""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, require_reference, uses_cpu_kernel, uses_cuda_kernel, uses_triton_kernel
from benthic.kernels.fp8_product import fp8_product
from benthic.kernels.inputs import require_floats
from benthic.kernels.linear.layout import is_by_columns
from benthic.kernels.linear.reference import fp8_linear_ref, linear_ref
from benthic.kernels.linear.weights import Fp8Weight
from benthic.kernels.precision import wide
from benthic.kernels.quantize import QuantizedRows, quantize_rows
from benthic.kernels.quantize.rows import GROUP


def linear(
    x: Tensor | QuantizedRows,
    weight: Tensor | Fp8Weight,
    out_dtype: torch.dtype | None = None,
    *,
    impl: Impl = "auto",
) -> Tensor:
    """y = x W^T without bias.

    Args:
        x: [R, I], any float dtype; or rows in FP8.
        weight: [O, I], any float dtype; on the CPU usually float32 holding the file's values exactly. Serving lays
            it out `by_columns`; any layout is right. Or a weight in FP8: with rows in FP8 that is the native product,
            with other rows its values are multiplied.
        out_dtype: dtype of the result; None for that of `x`, and bfloat16 for rows in FP8. float32 makes the product
            a float32 island.

    Returns:
        [R, O]. On CPU and in islands: float32 product of the values, rounded once. On CUDA: product of values in
        `x.dtype` with float32 accumulation; an island of rows and weight in one 16-bit dtype multiplies these, for
        then nothing is lost. Of rows and weight in FP8, on any device: for each 128 of I, ascending,
        acc += (codes . codes in float32) * (row scale * tile scale), rounded once.

    Raises:
        KernelInputError: the shapes do not fit.

    A row has the same bits in any batch. On the CPU a weight by columns takes one row by our own kernel and more by
    the library, another weight takes few rows padded to 16; `exactness.establish_min_rows` checks it at start-up. On
    CUDA one kernel takes all, in an order that the weight's shape decides.
    """
    if len(x.shape) != 2 or len(weight.shape) != 2 or x.shape[1] != weight.shape[1]:
        raise KernelInputError(
            f"x has shape {tuple(x.shape)} and weight {tuple(weight.shape)}; they must be [R, I] and [O, I]"
        )
    if isinstance(x, QuantizedRows):
        dtype = torch.bfloat16 if out_dtype is None else out_dtype
        if isinstance(weight, Fp8Weight):
            return _of_fp8(x, weight, dtype, impl)
        return linear(x.dequantized(dtype), weight, dtype, impl=impl)
    if isinstance(weight, Fp8Weight):
        weight = weight.dequantized(x.dtype)
    require_floats(x=x, weight=weight)
    dtype = x.dtype if out_dtype is None else out_dtype
    if _runs_on_cuda(impl, x):
        return _on_cuda(x[:, None], weight[None], dtype, impl)[:, 0]
    if not uses_cpu_kernel(impl, x) or not is_by_columns(weight):
        return linear_ref(x, weight, dtype)
    rows = wide(x)
    if rows.shape[0] != 1:
        product = F.linear(rows, weight)
    elif torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return linear_ref(x, weight, dtype)
    else:
        product = _cpu()(rows if rows.stride(1) == 1 else rows.contiguous(), weight)
    return product if dtype is torch.float32 else product.to(dtype)


def batched_linear(x: Tensor, weight: Tensor, *, impl: Impl = "auto") -> Tensor:
    """y[:, g] = x[:, g] W_g^T: every row passes every group (the grouped output projection).

    Args:
        x: [R, G, I], any float dtype.
        weight: [G, O, I], any float dtype; serving lays it out `by_columns`.

    Returns:
        [R, G, O] in the dtype of `x`; bits as for `linear` of each group.

    Raises:
        KernelInputError: the shapes do not fit.
    """
    if x.dim() != 3 or weight.dim() != 3 or x.shape[1] != weight.shape[0] or x.shape[2] != weight.shape[2]:
        raise KernelInputError(
            f"x has shape {tuple(x.shape)} and weight {tuple(weight.shape)}; they must be [R, G, I] and [G, O, I]"
        )
    require_floats(x=x, weight=weight)
    if _runs_on_cuda(impl, x):
        return _on_cuda(x, weight, x.dtype, impl)
    if x.is_cuda:
        return torch.bmm(x.transpose(0, 1), weight.to(x.dtype).transpose(1, 2)).transpose(0, 1)
    if x.shape[0] > 1 and is_by_columns(weight) and uses_cpu_kernel(impl, x):
        return torch.bmm(wide(x).transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1).to(x.dtype)
    products = [linear(x[:, group], one, impl=impl) for group, one in enumerate(weight.unbind(0))]
    return torch.stack(products, dim=1)


@torch.no_grad()
def widened_linear(
    x: Tensor, weight: Fp8Weight, *, quantizes: bool = False, impl: Impl = "auto"
) -> Tensor | QuantizedRows:
    """`batched_linear` of rows that are not rounded and a weight in FP8, read as it is. No gradient.

    Args:
        x: [R, G, I], bfloat16.
        weight: [G, O, I], I and O multiples of 128.
        quantizes: give the rows [R, G O] in FP8 with scales that are powers of two, as a following product reads them.

    Returns:
        [R, G, O] in the dtype of `x`, or QuantizedRows of it. A row has the same bits in any batch; its sums are formed
        128 inputs at a time, codes first, scales after.

    Raises:
        KernelInputError: the shapes do not fit.
    """
    if x.dim() != 3 or len(weight.shape) != 3 or x.shape[1] != weight.shape[0] or x.shape[2] != weight.shape[2]:
        raise KernelInputError(
            f"x has shape {tuple(x.shape)} and weight {tuple(weight.shape)}; they must be [R, G, I] and [G, O, I]"
        )
    if not isinstance(weight, Fp8Weight):
        raise KernelInputError(
            f"weight is a {type(weight).__name__}; it must be an Fp8Weight: others go to batched_linear"
        )
    if weight.shape[1] % GROUP or weight.shape[2] % GROUP:
        raise KernelInputError(f"weight has shape {tuple(weight.shape)}; its last dims must be multiples of {GROUP}")
    if uses_cuda_kernel(impl, x) and quantizes:
        from benthic.kernels.linear.widened_cuda import multiply_widened_few, takes

        if takes(x, weight):
            return multiply_widened_few(x, weight)
    if x.dtype is torch.bfloat16 and (impl == "cuda" or uses_triton_kernel(impl, x)):
        return _widened()(x if x.stride(2) == 1 else x.contiguous(), weight, quantizes=quantizes)
    y = batched_linear(x, weight.dequantized(x.dtype), impl=impl)
    return quantize_rows(y.flatten(1)) if quantizes else y


@cache
def _widened() -> Callable[..., Tensor | QuantizedRows]:
    from benthic.kernels.linear.widened import multiply_widened

    return multiply_widened


def _of_fp8(x: QuantizedRows, weight: Fp8Weight, dtype: torch.dtype, impl: Impl) -> Tensor:
    product = fp8_product(x, weight.data[None], weight.scale[None], None, None, dtype, impl=impl)
    if product is not None:
        return product
    require_reference(impl, "linear of FP8 rows and an FP8 weight")
    return fp8_linear_ref(x, weight, dtype)


def _runs_on_cuda(impl: Impl, x: Tensor) -> bool:
    """True for the kernels of a GPU: Triton's takes whatever the one in CUDA C++ does not, with the same bits."""
    return (impl == "cuda" and uses_cuda_kernel(impl, x)) or uses_triton_kernel(impl, x, is_operator=True)


def _on_cuda(x: Tensor, weight: Tensor, dtype: torch.dtype, impl: Impl) -> Tensor:
    """[R, G, I] and [G, O, I] -> [R, G, O] in `dtype`; where that is not the dtype of `x`, a float32 product.

    Values of 16 bits on both sides stay as they are: their products are exact in float32.
    """
    from benthic.kernels.linear.cuda import multiply_cuda
    from benthic.kernels.linear.kernel import multiply, multiply_trained, product

    x = x if dtype is x.dtype or weight.dtype is x.dtype else wide(x)
    weight = weight.to(x.dtype)
    if impl == "cuda":
        return multiply_cuda(x, weight, dtype)
    if impl == "triton":
        return multiply(x, weight, dtype)
    needs_gradient = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return (multiply_trained if needs_gradient or torch.compiler.is_compiling() else product)(x, weight, dtype)


@cache
def _cpu() -> Callable[[Tensor, Tensor], Tensor]:
    from benthic.kernels.linear.cpu import few_rows_linear

    return few_rows_linear
