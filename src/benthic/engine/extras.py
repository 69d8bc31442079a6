"""What tokens chose besides their successors: routed experts and the indexer's picks, from the model to the answer.

A pass leaves them on the device, row by row; they travel to the host in the smallest unsigned type that holds them, are
gathered per request, and are kept with every published page, so that a prefix hit has them too.
"""

from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from benthic.engine.host_copy import HostCopy
from benthic.engine.request import Extras, RowExtras
from benthic.models.config import ModelConfig
from benthic.models.context import Chunk
from benthic.models.trace import Trace

COMPACT = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.uint16), 4: (torch.int32, np.uint32)}
"""By bytes: the type on the device, and the unsigned one that its bits are read as."""


class PendingExtras:
    """Extras of a pass's rows on their way to the host."""

    def __init__(self, routes: Tensor | None, picks: Tensor | None, chunks: Seq[Chunk]) -> None:
        self._has = (routes is not None, picks is not None)
        self._copy = HostCopy([tensor for tensor in (routes, picks) if tensor is not None])
        self._chunks = chunks

    def result(self) -> tuple[RowExtras, ...]:
        """Those of each chunk, waiting for them."""
        found = iter([_unsigned(tensor) for tensor in self._copy.wait()])
        routes, picks = (next(found) if has else None for has in self._has)
        return tuple(RowExtras(_rows(routes, chunk), _rows(picks, chunk)) for chunk in self._chunks)


class ExtrasCollector:
    """Takes extras out of passes.

    Args:
        max_len: tokens of the longest sequence: bounds the entry numbers.
    """

    def __init__(self, config: ModelConfig, max_len: int, *, keep_routes: bool, keep_picks: bool) -> None:
        self._keep_routes, self._keep_picks = keep_routes, keep_picks
        self._routes = _compact(config.n_routed_experts - 1)
        self._routed = [n for n, layer in enumerate(config.layers) if layer.mlp == "experts"]
        self._indexed = [n for n, layer in enumerate(config.layers) if layer.has_index]
        finest = min((config.layers[n].ratio for n in self._indexed), default=1)
        self._picks = _compact(max_len // finest)  # the largest number stands for "no pick"

    @property
    def keeps_any(self) -> bool:
        """Whether anything is taken out."""
        return self._keep_routes or self._keep_picks

    def trace(self) -> Trace | None:
        """What to hand to the model; None where nothing is kept."""
        return Trace(wants_picks=self._keep_picks) if self.keeps_any else None

    def collect(self, trace: Trace | None, chunks: Seq[Chunk]) -> PendingExtras | None:
        """Starts the copies."""
        if trace is None:
            return None
        routes = picks = None
        if self._keep_routes and self._routed:
            routes = torch.stack([trace.experts[layer] for layer in self._routed], dim=1).to(self._routes)
        if self._keep_picks and self._indexed:
            picks = torch.stack([trace.picks[layer] for layer in self._indexed], dim=1).to(self._picks)
        return PendingExtras(routes, picks, chunks)


class ExtrasBuffer:
    """The extras of one sequence, by position."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._kinds: list[Extras | None] = [None, None]

    def write(self, start: int, extras: RowExtras) -> None:
        """Puts those of the rows from position `start` on."""
        for kind, rows in enumerate(extras):
            if rows is not None:
                buffer = self._room(kind, start + len(rows), rows)
                buffer[start : start + len(rows)] = rows

    def read(self, start: int, end: int) -> RowExtras:
        """A copy of positions start .. end - 1, which were written."""
        routes, picks = (None if buffer is None else buffer[start:end].copy() for buffer in self._kinds)
        return RowExtras(routes, picks)

    def page(self, number: int) -> RowExtras:
        """Those of one page, to be kept with it."""
        return self.read(number * self._page_size, (number + 1) * self._page_size)

    def _room(self, kind: int, length: int, like: Extras) -> Extras:
        buffer = self._kinds[kind]
        if buffer is None or len(buffer) < length:
            grown = np.zeros((max(2 * length, 2 * self._page_size), *like.shape[1:]), like.dtype)
            if buffer is not None:
                grown[: len(buffer)] = buffer
            self._kinds[kind] = buffer = grown
        return buffer


def _compact(largest: int) -> torch.dtype:
    return next(dtype for size, (dtype, _) in COMPACT.items() if largest < 1 << (8 * size))


def _unsigned(tensor: Tensor) -> Extras:
    _, unsigned = COMPACT[tensor.dtype.itemsize]
    return tensor.numpy().view(unsigned)


def _rows(extras: Extras | None, chunk: Chunk) -> Extras | None:
    return None if extras is None else extras[chunk.start_row : chunk.start_row + chunk.length]
