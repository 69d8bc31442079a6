"""How the exported functions of the FP8 products are called."""

import ctypes
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from benthic.kernels.cuda_library import CudaLibrary


@cache
def function(library: CudaLibrary, name: str, arguments: str) -> Callable[..., None]:
    """An exported function; `arguments` has p for an address, i for an int, f for a float."""
    kinds = {"p": ctypes.c_void_p, "i": ctypes.c_int, "f": ctypes.c_float}
    return library.function(name, [kinds[argument] for argument in arguments])


def address(x: Tensor | None) -> int | None:
    """Of a tensor's first value."""
    return None if x is None else x.data_ptr()


def stream_of(device: torch.device) -> int:
    """The stream that work on `device` is queued in."""
    return torch.cuda.current_stream(device).cuda_stream
