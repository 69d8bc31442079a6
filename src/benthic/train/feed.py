"""From packed batches in host memory to what a step reads on its device, ahead of time.

On CUDA a thread prepares batches on its own stream: copies from pinned memory and the attention plan cost the
training loop nothing but a wait for an event. On CPU batches are prepared when asked for.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benthic.models.config import ModelConfig
from benthic.models.context import Chunk, Rows
from benthic.models.packed_plan import PackedCapacity, PackedPlan, plan_packed
from benthic.train.balance_losses import Sequences
from benthic.train.dropping import spared_rows
from benthic.train.packing import Layout, TrainBatch
from benthic.train.stream import BatchStream

_AHEAD = 2


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """A packed batch on its device, with the plan of its attention.

    `targets` int64 [S, R] and `weights` fp32 [S, R] as in `TrainBatch`; `weight_sums` fp32 [S]; `sequences` says which
    document each row belongs to; `is_spared` bool [R], the rows that token dropping leaves alone.
    """

    rows: Rows
    plan: PackedPlan
    targets: Tensor
    weights: Tensor
    weight_sums: Tensor
    sequences: Sequences
    is_spared: Tensor

    def tensors(self) -> list[Tensor]:
        """Every tensor, in a fixed order."""
        own = [self.rows.token_ids, self.rows.positions, self.targets, self.weights, self.weight_sums]
        return [*own, self.sequences.of_row, self.sequences.is_real, self.is_spared, *self.plan.tensors()]

    @torch.no_grad()
    def copy_(self, other: "DeviceBatch") -> None:
        """Takes the values of a batch of the same layout, in place."""
        torch._foreach_copy_(self.tensors(), other.tensors())


def to_device(
    batch: TrainBatch, config: ModelConfig, layout: Layout, device: torch.device, spared_share: float = 0.0
) -> DeviceBatch:
    """Copies a batch to the device and plans its attention; all batches of a layout get the same shapes on CUDA.

    Args:
        spared_share: of documents, from which token dropping shall take nothing.
    """
    places = zip(batch.starts.tolist(), batch.lengths.tolist(), strict=True)
    chunks = tuple(Chunk(number, start, 0, length) for number, (start, length) in enumerate(places))
    token_ids, positions = _copy(batch.token_ids, torch.int64, device), _copy(batch.positions, torch.int64, device)
    on_cuda = device.type == "cuda"
    # Fixed shapes cost surplus tiles; on CPU nothing is captured, so the plan is as small as the batch allows.
    capacity = PackedCapacity(batch.budget, layout.max_blocks, layout.max_len) if on_cuda else None
    plan = plan_packed(config, chunks, batch.budget, capacity=capacity, on_cuda=on_cuda)
    weights = _copy(batch.weights, torch.float32, device)
    return DeviceBatch(
        rows=Rows(token_ids, positions, batch.budget, chunks),
        plan=plan.pin().to(device) if on_cuda else plan,
        targets=_copy(batch.targets, torch.int64, device),
        weights=weights,
        weight_sums=weights.sum(1),
        sequences=Sequences(
            of_row=_copy(batch.document_of_row, torch.int64, device),
            # A document takes a block of positions at least, so there are never more.
            num_sequences=layout.max_blocks if on_cuda else len(chunks),
            is_real=torch.arange(batch.budget, device=device) < batch.num_tokens,
        ),
        is_spared=_copy(spared_rows(batch, spared_share), torch.bool, device),
    )


def _copy(array: NDArray[np.generic], dtype: torch.dtype, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True).to(dtype)


Prepare = Callable[[TrainBatch], DeviceBatch]


class Feed(Protocol):
    """Prepared batches in order."""

    def next(self) -> DeviceBatch:
        """The next batch, ready on the current stream."""
        ...

    def close(self) -> None:
        """Stops preparing."""
        ...


def open_feed(stream: BatchStream, prepare: Prepare, device: torch.device, batches_per_step: int = 1) -> Feed:
    """Prepares the stream's batches: ahead on CUDA, when asked for elsewhere."""
    if device.type == "cuda":
        return AheadFeed(stream, prepare, batches_per_step)
    return DirectFeed(stream, prepare)


class DirectFeed:
    """Prepares each batch in the caller's thread."""

    def __init__(self, stream: BatchStream, prepare: Prepare) -> None:
        self._stream, self._prepare = stream, prepare

    def next(self) -> DeviceBatch:
        return self._prepare(self._stream.next())

    def close(self) -> None:
        """Nothing runs ahead."""


@dataclass(frozen=True, slots=True)
class _Ready:
    batch: DeviceBatch
    event: torch.cuda.Event


class AheadFeed:
    """Prepares batches in a thread and on a CUDA stream of its own.

    A batch's memory belongs to that stream. It is given back only after the step that read it is over: as many batches
    as a step takes stay in use, so when `next` lets one go, the step that read it has been launched whole; its end is
    marked on the caller's stream, and the thread waits for the mark before it drops the batch.
    """

    def __init__(self, stream: BatchStream, prepare: Prepare, batches_per_step: int) -> None:
        self._stream, self._prepare, self._batches_per_step = stream, prepare, batches_per_step
        self._in_use: deque[DeviceBatch] = deque()
        self._used: deque[_Ready] = deque()
        self._side: torch.cuda.Stream = torch.cuda.Stream()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="feed")
        self._coming: deque[Future[_Ready]] = deque(self._thread.submit(self._make) for _ in range(_AHEAD))

    def next(self) -> DeviceBatch:
        if len(self._in_use) == self._batches_per_step:
            over = torch.cuda.Event()
            over.record()
            self._used.append(_Ready(self._in_use.popleft(), over))
        ready = self._coming.popleft().result()
        self._coming.append(self._thread.submit(self._make))
        torch.cuda.current_stream().wait_event(ready.event)
        self._in_use.append(ready.batch)
        return ready.batch

    def close(self) -> None:
        for future in self._coming:
            future.cancel()
        self._thread.shutdown(wait=True)

    def _make(self) -> _Ready:
        while self._used:
            # No batch is prepared before the last but one step is over, so the host cannot run away either.
            self._used.popleft().event.synchronize()
        with torch.cuda.stream(self._side):
            batch = self._prepare(self._stream.next())
            event = torch.cuda.Event()
            event.record()
        return _Ready(batch, event)
