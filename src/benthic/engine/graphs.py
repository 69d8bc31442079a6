"""Work that is recorded once and replayed: CUDA graphs, and the same protocol without any.

What is recorded reads and writes tensors whose addresses stay. A replay costs the host one call whatever it does.
"""

import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet

import torch

T = TypeVar("T")

logger = logging.getLogger(__name__)


class CaptureRefused(Exception):
    """Somewhere in the work the host waits for the device."""


class Graphs(Protocol):
    """Records work."""

    def capture(self, run: Callable[[], T]) -> Callable[[], T]:
        """Something that does what `run` does and returns what it returns.

        `run` may be called now, any number of times. Tensors that it returns hold their values until the next replay
        of any graph captured here.

        Raises:
            CaptureRefused: the work cannot be recorded; nothing of it is.
        """
        ...

    def forget(self) -> None:
        """Nobody holds anything any more that was captured here."""
        ...


class EagerGraphs:
    """Records nothing: a replay runs the work again."""

    def capture(self, run: Callable[[], T]) -> Callable[[], T]:
        """See `Graphs`."""
        return run

    def forget(self) -> None:
        """See `Graphs`."""


def captured_or_not(graphs: Graphs, run: Callable[[], T]) -> tuple[Callable[[], T], bool]:
    """What does the work, and whether it is a replay: where the work cannot be recorded it is done piece by piece."""
    try:
        return graphs.capture(run), True
    except CaptureRefused as refusal:
        logger.warning("%s; it is launched piece by piece, which is slower", refusal)
        return run, False


class CudaGraphs:
    """CUDA graphs that share their memory: only one runs at a time, so the largest is what all of them take."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._pool = torch.cuda.graph_pool_handle()
            self._recorded: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
            self._stream = torch.cuda.Stream(device)

    def capture(self, run: Callable[[], T]) -> Callable[[], T]:
        """See `Graphs`. `run` is called on trial: for kernels that are compiled on their first use, and for waits."""
        graph, stream = torch.cuda.CUDAGraph(), self._stream
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            run()
            _try_without_waiting(run)
            # Nothing may be freed under a recording, and what the trials took is to be had again.
            torch.cuda.synchronize(self._device)
            # A pool is given up with its last graph, as when weights change; it cannot be taken up again.
            if not self._recorded:
                self._pool = torch.cuda.graph_pool_handle()
            # Other threads of this process go on meanwhile; what they do is none of this recording's business.
            with _no_collection():
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    result = run()
                finally:
                    graph.capture_end()
            self._recorded.add(graph)
        torch.cuda.current_stream(self._device).wait_stream(stream)
        return _Replay(graph, result, run)

    def forget(self) -> None:
        """See `Graphs`."""
        torch.cuda.empty_cache()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python collects no cycles meanwhile: the end of a graph or kernel among them would break the recording."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _try_without_waiting(run: Callable[[], object]) -> None:
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode is called a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    except RuntimeError as error:
        raise CaptureRefused(f"a pass cannot be captured: {error}") from error
    finally:
        torch.cuda.set_sync_debug_mode(before)


@dataclass(frozen=True, slots=True)
class _Replay(Generic[T]):
    """`run` is kept: the graph reads tensors that may be alive through it alone."""

    graph: torch.cuda.CUDAGraph
    result: T
    run: Callable[[], T]

    def __call__(self) -> T:
        self.graph.replay()
        return self.result
