"""Which implementation of an operation runs.

`"auto"` takes the numba kernel for tensors on the CPU of at most float32; on CUDA the CUDA C++ kernel where an
operation has one, the device is a Hopper GPU and nvcc is there, else its Triton kernel; and the plain reference
everywhere else. float64 always means the reference, so that gradients can be checked.
Naming an implementation is for tests, benches and bug hunts.
"""

from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.cuda_library import has_cuda_compiler

Impl = Literal["auto", "reference", "cpu", "triton", "cuda"]

HOPPER = (9, 0)
# Found once, outside any function: a compiler that traces an operation cannot trace a search for packages.
_HAS_TRITON = find_spec("triton") is not None


def uses_cpu_kernel(impl: Impl, x: Tensor) -> bool:
    """True if an operation that has a CPU kernel should use it on `x`.

    Raises:
        KernelInputError: the named implementation cannot take this device or dtype, or does not exist.
    """
    fits = x.is_cpu and x.dtype is not torch.float64
    if impl == "auto":
        return fits
    if impl == "cpu" and not fits:
        raise KernelInputError(
            f"impl='cpu' got a {x.dtype} tensor on {x.device}; it takes float32, bfloat16 or float16 on cpu"
        )
    return impl == "cpu" or _is_reference(impl)


def uses_triton_kernel(impl: Impl, x: Tensor, *, is_operator: bool = False) -> bool:
    """True if an operation that has a Triton kernel should use it on `x`; the other names are for `uses_cpu_kernel`.

    Inside torch.compile the reference is what can be compiled, unless the kernel `is_operator`: one registered with
    torch, which a compiled graph holds as it is.

    Raises:
        KernelInputError: `impl` is "triton" and `x` is not for it, or Triton is not installed.
    """
    fits = x.is_cuda and x.dtype is not torch.float64
    if impl == "auto":
        return fits and _HAS_TRITON and (is_operator or not torch.compiler.is_compiling())
    if impl == "triton" and not (fits and _HAS_TRITON):
        raise KernelInputError(
            f"impl='triton' got a {x.dtype} tensor on {x.device}; it takes float32, bfloat16 or float16 on cuda, "
            "and needs the package triton"
        )
    return impl == "triton"


def uses_cuda_kernel(impl: Impl, x: Tensor) -> bool:
    """True if an operation that has a CUDA C++ kernel should use it on `x`; ask before `uses_triton_kernel`.

    Raises:
        KernelInputError: `impl` is "cuda" and `x` is not on a Hopper GPU, or nothing compiles here.
    """
    if impl not in ("auto", "cuda"):
        return False
    fits = x.is_cuda and _is_hopper(x.device.index or 0) and has_cuda_compiler()
    if impl == "auto":
        return fits and not torch.compiler.is_compiling()
    if not fits:
        raise KernelInputError(
            f"impl='cuda' got a {x.dtype} tensor on {x.device}; it takes tensors on a Hopper GPU (compute capability "
            "9.0), and needs nvcc: install CUDA 13, or `pip install nvidia-cuda-nvcc`"
        )
    return True


def require_reference(impl: Impl, op: str) -> None:
    """Refuses any implementation but the reference for an operation that has no other.

    Raises:
        KernelInputError: `impl` names another one.
    """
    if impl == "cpu":
        raise KernelInputError(f"{op} has no impl='cpu'; it has 'auto' and 'reference'")
    if impl != "auto":
        _is_reference(impl)


def _is_reference(impl: Impl) -> bool:
    """Always False: a name that is not the reference raises."""
    if impl in ("triton", "cuda"):
        raise KernelInputError(f"this operation has no impl={impl!r}; use 'auto', 'reference' or 'cpu'")
    if impl != "reference":
        raise KernelInputError(f"impl={impl!r} is unknown; it is one of 'auto', 'reference', 'cpu', 'triton', 'cuda'")
    return False


@cache
def _is_hopper(index: int) -> bool:
    return torch.cuda.get_device_capability(index) == HOPPER
