"""A second CUDA stream for the branches of a layer, of use where their kernels leave most of a device idle."""

from collections.abc import Callable
from typing import TypeVar

import torch

from benthic.models.beside import Beside, in_line

MOST_ROWS = 64
"""Rows of a pass up to which a layer's kernels leave room for others beside them."""

T = TypeVar("T")


class SideStream:
    """A `models.beside.Beside`: branches run on a stream of their own, one at a time.

    What a branch reads stays alive until it is joined, since its closure does. What it leaves is not written to anew
    before the next branch starts, which waits for everything queued until then.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def __call__(self, work: Callable[[], T], /) -> Callable[[], T]:
        """See `Beside`."""
        stream, main = self._stream, torch.cuda.current_stream(self._stream.device)
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            result = work()

        def join() -> T:
            main.wait_stream(stream)
            held.clear()
            return result

        held = [work]
        return join


def branches(device: torch.device) -> Callable[[int], Beside]:
    """How branches of layers run there, by the rows of a pass."""
    if device.type != "cuda":
        return lambda num_rows: in_line
    side = SideStream(device)
    return lambda num_rows: side if num_rows <= MOST_ROWS else in_line
