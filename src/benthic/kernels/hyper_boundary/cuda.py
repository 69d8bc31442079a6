"""A boundary on Hopper as one launch of CUDA C++ (boundary.cu): streams of bfloat16, widths that clusters divide."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benthic.kernels.cuda_library import CudaLibrary
from benthic.kernels.moe_experts.cuda import alone_bytes

_OUTPUT_KINDS = {None: 0, torch.bfloat16: 1, torch.float32: 2}
_PICKED = 3
_ADDENDS = (None, torch.bfloat16)


def fits_cuda(output: Tensor | None, addend: Tensor | None, streams: Tensor, gain: Tensor) -> bool:
    """Whether boundary.cu takes these inputs; other widths and dtypes are the Triton kernel's."""
    rows, _, size = streams.shape
    divides = (size % 256 == 0 and size <= 4096) or (size % 896 == 0 and size <= 7168)
    aligned = streams.stride(2) == 1 and not (streams.stride(0) % 8 or streams.stride(1) % 8 or streams.data_ptr() % 16)
    return (
        rows > 0
        and divides
        and aligned
        and streams.dtype is torch.bfloat16
        and gain.dtype in (torch.bfloat16, torch.float32)
        and (None if output is None else output.dtype) in _OUTPUT_KINDS
        and (None if addend is None else addend.dtype) in _ADDENDS
    )


def adds_picks(streams: Tensor) -> bool:
    """Whether boundary.cu adds up PickedRows beside streams that it takes."""
    return streams.shape[2] % 256 == 0 and streams.shape[2] <= 4096


def hyper_boundary_cuda(
    output: Tensor | None,
    addend: Tensor | None,
    streams: Tensor,
    post: Tensor | None,
    comb: Tensor | None,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    gain: Tensor,
    eps: float,
    iters: int,
    norm_eps: float,
    quantizes: bool,
    slots: Tensor | None = None,
    is_alone: bool = False,
) -> tuple[Tensor, ...]:
    """See `hyper_boundary_triton`. With `slots`, the output and the addend are those of PickedRows.

    `is_alone`: of one row also its blocked form for routed experts, last.
    """
    rows, n, _ = streams.shape
    new_post, new_comb = fn.new_empty(rows, n), fn.new_empty(rows, n, n)
    weights = (fn, scale, base, gain)
    closing, mixing = (output, addend, streams, post, comb), (new_post, new_comb)
    made = _cross(closing, weights, mixing, eps, norm_eps, iters, quantizes, slots, is_alone)
    return (*made[:2], new_post, new_comb, *made[2:])


def hyper_exit_cuda(
    output: Tensor | None,
    addend: Tensor | None,
    streams: Tensor,
    post: Tensor | None,
    comb: Tensor | None,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    gain: Tensor,
    eps: float,
    norm_eps: float,
) -> tuple[Tensor, ...]:
    """See `hyper_exit_triton`."""
    closing, weights = (output, addend, streams, post, comb), (fn, scale, base, gain)
    return _cross(closing, weights, (None, None), eps, norm_eps, 0, False)


def _cross(
    closing: tuple[Tensor | None, ...],
    weights: tuple[Tensor, ...],
    mixing: tuple[Tensor | None, ...],
    eps: float,
    norm_eps: float,
    iters: int,
    quantizes: bool,
    slots: Tensor | None = None,
    is_alone: bool = False,
) -> tuple[Tensor, ...]:
    """Streams, input and, if it `quantizes`, codes and scales; fills `mixing`."""
    output, streams = closing[0], closing[2]
    assert streams is not None
    rows, n, size = streams.shape
    dense = [x if x is None or x is streams else x.contiguous() for x in closing]
    fn, scale, base, gain = (x.contiguous() for x in weights)
    merged = streams if output is None else streams.new_empty(rows, n, size)
    normed = streams.new_empty(rows, size)
    rounded: tuple[Tensor, ...] = ()
    if quantizes:
        codes = torch.empty(rows, size, dtype=torch.float8_e4m3fn, device=streams.device)
        rounded = (codes, torch.empty(rows, size // 128, dtype=torch.float32, device=streams.device))
    alone = normed.new_empty(alone_bytes(size), dtype=torch.uint8) if is_alone else None
    tensors = (*dense, fn, scale, base, gain, merged, normed, *(rounded or (None, None)), *mixing)
    _function()(
        *(None if x is None else x.data_ptr() for x in tensors),
        streams.stride(0),
        streams.stride(1),
        rows,
        size,
        fn.shape[0],
        iters,
        _OUTPUT_KINDS[None if output is None else output.dtype] if slots is None else _PICKED,
        int(gain.dtype is torch.bfloat16),
        eps,
        norm_eps,
        None if slots is None else slots.data_ptr(),
        0 if slots is None else slots.shape[1],
        None if alone is None else alone.data_ptr(),
        torch.cuda.current_stream(streams.device).cuda_stream,
    )
    return (merged, normed, *rounded) if alone is None else (merged, normed, *rounded, alone)


@cache
def _function() -> Any:
    pointer, number = ctypes.c_void_p, ctypes.c_int
    types = [pointer] * 15 + [ctypes.c_longlong] * 2 + [number] * 6 + [ctypes.c_float] * 2
    types += [pointer, number, pointer, pointer]
    return CudaLibrary(Path(__file__).with_name("boundary.cu")).function("cross", types)
