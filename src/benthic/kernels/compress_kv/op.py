"""The door of compression."""

from collections.abc import Callable
from functools import cache

from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, uses_cpu_kernel, uses_triton_kernel
from benthic.kernels.compress_kv.blocks import CompletedBlocks
from benthic.kernels.compress_kv.reference import compress_kv_ref
from benthic.kernels.reference_gradient import with_reference_gradient

ROWS_AT_ONCE = 8
"""Rows that the kernel on CUDA adds together; it takes blocks of whole eights."""


def compress_kv(raw: Tensor, ape: Tensor, blocks: CompletedBlocks, *, impl: Impl = "auto") -> Tensor:
    """Pools the raw rows of completed blocks into one entry each, before norm and rotation (model.md 2.5).

    Args:
        raw: [num_slots, 2*c*d] float32 (or wider), A | B without positional bias; c = 2 for ratio 4, 1 for ratio 128.
        ape: [ratio, c*d] positional bias of the gates.
        blocks: m completed blocks.

    Returns:
        [m, d], float32 (or wider). Each entry depends on its own block (and, for ratio 4, its predecessor) only.
    """
    ratio, width = ape.shape
    if ratio != blocks.ratio or raw.shape[-1] != 2 * width:
        raise KernelInputError(
            f"ape has shape {tuple(ape.shape)} and raw rows are {raw.shape[-1]} wide; "
            f"for ratio {blocks.ratio} they must be ({blocks.ratio}, w) and 2*w"
        )
    dim = width // 2 if ratio == 4 else width
    if uses_triton_kernel(impl, raw) and raw.dtype.itemsize <= 4 and blocks.sources.shape[1] % ROWS_AT_ONCE == 0:
        kernel = _triton()
    elif uses_cpu_kernel(impl, raw):
        kernel = _cpu()
    else:
        return compress_kv_ref(raw, ape, blocks.sources, blocks.first, dim)
    pooled: Tensor = with_reference_gradient(kernel, compress_kv_ref, (raw, ape), blocks.sources, blocks.first, dim)
    return pooled


@cache
def _triton() -> Callable[..., Tensor]:
    from benthic.kernels.compress_kv.kernel import compress_kv_triton

    return compress_kv_triton


@cache
def _cpu() -> Callable[..., Tensor]:
    from benthic.kernels.compress_kv.cpu import compress_kv_cpu

    return compress_kv_cpu
