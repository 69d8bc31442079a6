"""How a CPU kernel is compiled, and how it sees a tensor: as an address and a shape.

A kernel takes plain integers and floats only. Unwrapping a numpy array costs about 0.5 us an argument, which at one
row is most of a kernel's time; an integer costs next to nothing. The caller keeps the tensor alive, passes
`data_ptr()` and strides in elements, and has checked dtype and layout: nothing is checked here.

Whoever starts a fresh clone waits for all of this to be compiled, so kernels keep to what compiles fast: loops and
scalars. One assignment of an array to a slice costs 3 s, since numba compiles the text of its shape error along; a
sort, a reduction or an index array 0.5 to 2 s. A literal handed to a part (`0`, not `np.int64(0)`) compiles it again.
"""

from typing import Any

from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

# An entry from Python: compiled on first use and kept beside the source. A division by zero gives infinity as in numpy:
# the check that Python's error would need keeps loops from being vectorised. Never fastmath, see `numba_math`.
kernel = njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)

# A part of kernels, compiled once for all of them and called by kernels only.
part = njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True, no_cpython_wrapper=True)

# A part that belongs into its caller's loops. Inlined by LLVM: inlined by numba (`inline="always"`), it would be typed
# anew wherever it is called.
inlined = njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True, no_cpython_wrapper=True, forceinline=True)


@intrinsic
def float32s(typing_context: Any, address: Any, shape: Any) -> Any:
    """The float32 array of `shape` (a tuple) at `address`, C-contiguous."""
    return _array_at(types.float32, shape)


@intrinsic
def int64s(typing_context: Any, address: Any, shape: Any) -> Any:
    """The int64 array likewise."""
    return _array_at(types.int64, shape)


@intrinsic
def int32s(typing_context: Any, address: Any, shape: Any) -> Any:
    """The int32 array likewise."""
    return _array_at(types.int32, shape)


@intrinsic
def bytes8(typing_context: Any, address: Any, shape: Any) -> Any:
    """The uint8 array likewise; a bool tensor is one."""
    return _array_at(types.uint8, shape)


def _array_at(element: Any, shape: Any) -> Any:
    """Signature and code of such an array. numba's `carray` says the same in functions that are compiled each time."""
    array = types.Array(element, len(shape), "C")
    return array(types.int64, types.UniTuple(types.int64, len(shape))), _make_array


def _make_array(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    array = signature.return_type
    element = context.get_data_type(array.dtype)
    size = context.get_constant(types.intp, context.get_abi_sizeof(element))
    shape, strides = cgutils.unpack_tuple(builder, args[1]), [size]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    made = make_array(array)(context, builder)
    data = builder.inttoptr(args[0], element.as_pointer())
    populate_array(made, data=data, shape=shape, strides=strides, itemsize=size, meminfo=None)
    return made._getvalue()
