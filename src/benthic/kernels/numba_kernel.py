"""How a CPU kernel is compiled, and how it sees a tensor: as an address and a shape.

A kernel takes plain integers and floats only. Unwrapping a numpy array costs about 0.5 us an argument, which at one
row is most of a kernel's time; an integer costs next to nothing. The caller keeps the tensor alive, passes
`data_ptr()` and strides in elements, and has checked dtype and layout: nothing is checked here.
"""

from typing import Any

from numba import carray, njit, types
from numba.extending import intrinsic

# Compiled on first use and kept beside the source. A division by zero gives infinity as in numpy: the check that
# Python's error would need keeps loops from being vectorised. Never fastmath, see `numba_math`.
kernel = njit(cache=True, nogil=True, error_model="numpy")


@intrinsic
def _float32_pointer(typing_context: Any, address: Any) -> Any:
    return types.CPointer(types.float32)(types.int64), _reinterpret


@intrinsic
def _int64_pointer(typing_context: Any, address: Any) -> Any:
    return types.CPointer(types.int64)(types.int64), _reinterpret


@intrinsic
def _int32_pointer(typing_context: Any, address: Any) -> Any:
    return types.CPointer(types.int32)(types.int64), _reinterpret


@intrinsic
def _uint8_pointer(typing_context: Any, address: Any) -> Any:
    return types.CPointer(types.uint8)(types.int64), _reinterpret


def _reinterpret(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.inttoptr(args[0], context.get_value_type(signature.return_type))


@njit(inline="always")
def float32s(address: int, shape: Any) -> Any:
    """The float32 array of `shape` (a tuple) at `address`, C-contiguous."""
    return carray(_float32_pointer(address), shape)


@njit(inline="always")
def int64s(address: int, shape: Any) -> Any:
    """The int64 array likewise."""
    return carray(_int64_pointer(address), shape)


@njit(inline="always")
def int32s(address: int, shape: Any) -> Any:
    """The int32 array likewise."""
    return carray(_int32_pointer(address), shape)


@njit(inline="always")
def bytes8(address: int, shape: Any) -> Any:
    """The uint8 array likewise; a bool tensor is one."""
    return carray(_uint8_pointer(address), shape)
