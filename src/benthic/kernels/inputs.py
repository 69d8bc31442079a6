"""What doors refuse before a kernel runs: numbers that are no floats, and places outside what they point into.

A compiled kernel checks neither. Bytes of FP8 or integers would be taken for numbers, and a place outside would be read
or written there.
"""

from typing import get_args

import torch
from torch import Tensor

from benthic.errors import KernelInputError

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def require_floats(**tensors: Tensor | None) -> None:
    """Refuses tensors of integers and of FP8, whose scales would be lost.

    Raises:
        KernelInputError: one of them, by its name.
    """
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype not in FLOATS:
            raise KernelInputError(f"{name} is {tensor.dtype}; it must be float32, bfloat16, float16 or float64")


def require_dtype(dtype: torch.dtype, **tensors: Tensor | None) -> None:
    """Refuses tensors of another dtype.

    Raises:
        KernelInputError: one of them, by its name.
    """
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype is not dtype:
            raise KernelInputError(f"{name} is {tensor.dtype}; it must be {dtype}")


def require_below(name: str, places: Tensor, end: int, first: int = 0) -> None:
    """Refuses places outside first .. end - 1 on the CPU. On a GPU they stay the caller's: the host does not read them.

    Raises:
        KernelInputError: one is outside.
    """
    if not places.is_cpu or not places.numel() or torch.compiler.is_compiling():
        return
    least, most = (int(value) for value in torch.aminmax(places))
    if least < first or most >= end:
        raise KernelInputError(f"{name} run from {least} to {most}; they must be in {first} .. {end - 1}")


def require_choice(name: str, value: object, choices: object) -> None:
    """Refuses what is not one of a Literal's values.

    Raises:
        KernelInputError: it is not.
    """
    allowed = get_args(choices)
    if value not in allowed:
        raise KernelInputError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}")
