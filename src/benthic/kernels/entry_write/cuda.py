"""The compressor of 128 rows a block on Hopper in CUDA C++ (compress.cu): the Triton form's bits, in less time.

That form holds a block in sixteen warps, whose sums meet in shared memory; here a thread has a channel's rows.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benthic.kernels.cuda_library import CudaLibrary
from benthic.kernels.entry_write.targets import BlockEnds, CompressorSide, RawState
from benthic.kernels.kv_storage.layout import FP8_LAYOUTS, rotary_offset
from benthic.kernels.rope import RopeTable

RATIO, DIM, ROPE_DIM = 128, 512, 64
"""Of every released compressor of that ratio."""


def fits_cuda(
    raw: Tensor, state: RawState, ends: BlockEnds, sides: tuple[CompressorSide, ...], dtype: torch.dtype
) -> bool:
    """Whether compress.cu takes these inputs; other shapes and dtypes are the Triton kernel's."""
    side = sides[0]
    is_released = ends.ratio == RATIO and len(sides) == 1 and len(side.gain) == DIM and ends.ring_len >= RATIO
    return (
        is_released
        and 2 * ends.rope.cos.shape[1] == ROPE_DIM
        and ends.snapshots is None
        and dtype is torch.bfloat16
        and side.form in (None, "v4")
        and side.gain.dtype in (torch.bfloat16, torch.float32)
        and all(x.dtype is torch.float32 for x in (raw, state.rings, side.ape, *ends.rope))
        and all(x.stride(-1) == 1 for x in (raw, state.rings, side.buffer))
        and all(x.is_contiguous() for x in (side.ape, side.gain, *ends.rope))
    )


class HeadsBeside(NamedTuple):
    """Query heads that are normed and turned in the same launch: bf16 [R, H * 512] and their rotations."""

    product: Tensor
    rope: RopeTable

    def fits(self, ends: BlockEnds) -> bool:
        """Whether compress.cu takes them beside the entries of single rows."""
        product, rope = self
        return (
            ends.by_rows
            and len(product) == len(ends.positions)
            and product.dtype is torch.bfloat16
            and product.stride(1) == 1
            and product.stride(0) % 8 == 0
            and product.data_ptr() % 16 == 0
            and 2 * rope.cos.shape[1] == ROPE_DIM
            and all(x.dtype is torch.float32 and x.is_contiguous() for x in rope)
        )


def compress_128_cuda(
    raw: Tensor,
    state: RawState,
    ends: BlockEnds,
    side: CompressorSide,
    eps: float,
    kv_group: int,
    beside: HeadsBeside | None = None,
) -> Tensor | None:
    """Entries of the blocks that end; of single rows (`ends.by_rows`) the rows to keep too. See `compress_entries`.

    Returns the query [R, H, 512] of the heads `beside`, if there are any.
    """
    rows, blocks = len(ends.positions), len(ends.ends)
    query = None if beside is None else beside.product.new_empty(rows, beside.product.shape[1] // DIM, DIM)
    if not (rows if ends.by_rows else blocks):
        return query
    heads: tuple[int | None, ...] = (None, None, None, None, 0, 0)
    if beside is not None and query is not None:
        addresses = (x.data_ptr() for x in (beside.product, *beside.rope, query))
        heads = (*addresses, beside.product.stride(0), query.shape[1])
    plan = (ends.positions, ends.before, ends.rings, ends.ends, ends.slots)
    tensors = (raw, state.rings, side.ape, side.gain, side.buffer, *ends.rope, *plan)
    is_packed = side.form is not None
    _function()(
        *(x.data_ptr() for x in tensors),
        raw.stride(0),
        state.rings.stride(0),
        side.buffer.stride(0) * side.buffer.element_size(),
        rows,
        blocks,
        ends.ring_len,
        int(side.gain.dtype is torch.bfloat16),
        int(is_packed or kv_group > 0),
        int(is_packed),
        FP8_LAYOUTS["v4"].scale_offset(DIM - ROPE_DIM),
        rotary_offset(DIM, ROPE_DIM, "v4"),
        int(ends.by_rows),
        eps,
        *heads,
        torch.cuda.current_stream(raw.device).cuda_stream,
    )
    return query


@cache
def _function() -> Any:
    pointer, number = ctypes.c_void_p, ctypes.c_int
    types = [pointer] * 12 + [ctypes.c_longlong] * 3 + [number] * 9 + [ctypes.c_float]
    types += [pointer] * 4 + [ctypes.c_longlong, number, pointer]
    return CudaLibrary(Path(__file__).with_name("compress.cu")).function("compress_128", types)
