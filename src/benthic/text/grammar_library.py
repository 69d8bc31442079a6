"""The one door to xgrammar: imported when the first grammar is needed, and without the libraries that it does not use.

Importing xgrammar 0.2.9 brings transformers with it, and torch, for a tokenizer and an accelerator that Benthic does
not hand to it: 4 seconds and 180 MB in a process that needs neither (measured; 0.5 seconds and 25 MB without). So what
is not there yet is stood in for while it is imported. Masks are numpy arrays.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_UNUSED = ("torch", "transformers")


def load_library() -> Any:
    """The module `xgrammar`.

    Raises:
        ImportError: it is not installed.
    """
    known = sys.modules.get("xgrammar")
    if known is not None:
        return known
    absent = [name for name in _UNUSED if name not in sys.modules]
    with _in_place_of(dict.fromkeys(absent)):  # its bindings work without torch if they find none
        importlib.import_module("tvm_ffi")
    with _in_place_of({name: _Absent(name) for name in absent}):
        return importlib.import_module("xgrammar")


class _Absent(ModuleType):
    """A module whose every name is an empty class: enough for annotations and base classes."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *args, **kwargs: None})


@contextmanager
def _in_place_of(modules: dict[str, Any]) -> Iterator[None]:
    """While it lasts, imports find these; a None is a module that cannot be imported."""
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)
