"""Kernels being compiled, which happens on a machine's first start only and takes a while: news, and all at once."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from benthic.kernels.choice import uses_cuda_kernel
from benthic.kernels.cuda_library import build_all, missing_libraries

logger = logging.getLogger(__name__)


def compile_cuda_sources(device: torch.device) -> None:
    """Compiles the CUDA C++ kernels that are not on disk yet, if `device` is one that takes them; says so first.

    Without it each is compiled where it is first called: in the middle of a pass, one after the other.
    """
    if device.type == "cuda" and uses_cuda_kernel("auto", torch.empty(0, device=device)):
        missing = missing_libraries()
        if missing:
            logger.warning("compiling %d sources of CUDA kernels, once: a minute or two ...", len(missing))
            build_all(missing)


@contextmanager
def announced_compilation(say: Callable[[], object]) -> Iterator[None]:
    """Calls `say` as soon as a kernel is compiled inside, and not at all where all come from the cache."""
    from numba.core import event

    class Notice(event.Listener):  # type: ignore[misc]
        """Speaks once."""

        said = False

        def on_start(self, event: object) -> None:
            if not self.said:
                self.said = True
                say()

        def on_end(self, event: object) -> None:
            pass

    with event.install_listener("numba:compile", Notice()):
        yield
