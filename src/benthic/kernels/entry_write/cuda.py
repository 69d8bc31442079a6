"""The compressor of 128 rows a block on Hopper in CUDA C++ (compress.cu): the Triton form's bits, in less time.

That form holds a block in sixteen warps, whose sums meet in shared memory; here a thread has a channel's rows.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benthic.kernels.cuda_library import CudaLibrary
from benthic.kernels.entry_write.targets import BlockEnds, CompressorSide, RawState
from benthic.kernels.kv_storage.layout import FP8_LAYOUTS, rotary_offset

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


def compress_128_cuda(
    raw: Tensor, state: RawState, ends: BlockEnds, side: CompressorSide, eps: float, kv_group: int
) -> None:
    """Entries of the blocks that end; of single rows (`ends.by_rows`) the rows to keep too. See `compress_entries`."""
    rows, blocks = len(ends.positions), len(ends.ends)
    if not (rows if ends.by_rows else blocks):
        return
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
        torch.cuda.current_stream(raw.device).cuda_stream,
    )


@cache
def _function() -> Any:
    pointer, number = ctypes.c_void_p, ctypes.c_int
    types = [pointer] * 12 + [ctypes.c_longlong] * 3 + [number] * 9 + [ctypes.c_float, pointer]
    return CudaLibrary(Path(__file__).with_name("compress.cu")).function("compress_128", types)
