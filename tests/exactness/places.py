"""Where the suite's models live: on the CPU, and on a GPU in both dtypes of activations.

A test's `place` fixture says where; whoever builds a model asks here. Comparisons are always within one place.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypedDict

import torch


class Options(TypedDict):
    """Arguments of those who build models."""

    device: str
    dtype: torch.dtype


@dataclass(frozen=True)
class Place:
    """A device, and the dtype in which activations are held there."""

    device: str
    dtype: torch.dtype

    def __str__(self) -> str:
        return self.device if self.device == "cpu" else f"{self.device} {self.dtype}".replace("torch.", "")


CPU = Place("cpu", torch.float32)
GPU = (Place("cuda", torch.float32), Place("cuda", torch.bfloat16))
_CURRENT = ContextVar("place", default=CPU)


def current() -> Place:
    """Where the running test's models live."""
    return _CURRENT.get()


def options() -> Options:
    """The same as arguments of `dummy_model`, `empty_model` and `load_model`."""
    return {"device": current().device, "dtype": current().dtype}


@contextmanager
def at(place: Place) -> Iterator[None]:
    """Inside, models are built there."""
    token = _CURRENT.set(place)
    try:
        yield
    finally:
        _CURRENT.reset(token)
