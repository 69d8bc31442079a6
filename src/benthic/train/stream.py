"""Batches of a source in order, made here or in worker processes.

Worker i of n makes blocks i, i + n, i + 2n, ... of what is left, and they are taken in the order of their numbers:
which worker is faster changes nothing.
"""

import multiprocessing
import queue
from collections import deque
from multiprocessing.process import BaseProcess
from typing import Protocol

from benthic.errors import DataError
from benthic.train.packing import TrainBatch
from benthic.train.sources import Source

_POLL_S = 1.0


class BatchStream(Protocol):
    """Batches one after the other. `cursor` counts those taken; a stream opened at it goes on with the next."""

    cursor: int

    def next(self) -> TrainBatch:
        """The next batch."""
        ...

    def close(self) -> None:
        """Ends the workers, if any."""
        ...


def open_stream(source: Source, cursor: int = 0, num_workers: int = 0) -> BatchStream:
    """Opens a source at batch `cursor`; with `num_workers` = 0 batches are made in this process when asked for."""
    return WorkerStream(source, cursor, num_workers) if num_workers else SerialStream(source, cursor)


class SerialStream:
    """Makes batches in the calling process."""

    def __init__(self, source: Source, cursor: int = 0) -> None:
        self.cursor = cursor
        self._source = source
        self._next_block, skipped = divmod(cursor, source.batches_per_block)
        self._ready: deque[TrainBatch] = deque()
        if skipped:
            self._fill()
            for _ in range(skipped):
                self._ready.popleft()

    def next(self) -> TrainBatch:
        if not self._ready:
            self._fill()
        self.cursor += 1
        return self._ready.popleft()

    def close(self) -> None:
        """Nothing to end."""

    def _fill(self) -> None:
        self._ready.extend(self._source.block(self._next_block))
        self._next_block += 1


class WorkerStream:
    """Makes batches in `num_workers` processes, each one block ahead.

    The workers end when the stream is closed and when its process is gone, however it went.
    """

    def __init__(self, source: Source, cursor: int, num_workers: int) -> None:
        assert num_workers > 0
        self.cursor = cursor
        # A server that has imported us once forks the workers: no inherited device, locks or threads, and no wait.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._turn = 0
        first, skipped = divmod(cursor, source.batches_per_block)
        self._queues: list[multiprocessing.Queue[_Message]] = [context.Queue(maxsize=1) for _ in range(num_workers)]
        self._workers: list[BaseProcess] = []
        for number, channel in enumerate(self._queues):
            arguments = (source, first + number, num_workers, channel)
            worker = context.Process(target=_produce, args=arguments, daemon=True, name=f"batches-{number}")
            worker.start()
            self._workers.append(worker)
        self._ready: deque[TrainBatch] = deque()
        for _ in range(skipped):
            self._take()

    def next(self) -> TrainBatch:
        batch = self._take()
        self.cursor += 1
        return batch

    def close(self) -> None:
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.join()
        for channel in self._queues:
            channel.cancel_join_thread()
            channel.close()

    def _take(self) -> TrainBatch:
        if not self._ready:
            self._ready.extend(self._receive(self._turn))
            self._turn = (self._turn + 1) % len(self._workers)
        return self._ready.popleft()

    def _receive(self, number: int) -> list[TrainBatch]:
        while True:
            try:
                message = self._queues[number].get(timeout=_POLL_S)
            except queue.Empty:
                if not self._workers[number].is_alive():
                    code = self._workers[number].exitcode
                    raise DataError(f"batch worker {number} died with exit code {code}; its messages say why") from None
                continue
            if isinstance(message, str):
                raise DataError(f"batch worker {number} failed: {message}")
            return message


_Message = list[TrainBatch] | str


def _produce(source: Source, index: int, stride: int, channel: "multiprocessing.Queue[_Message]") -> None:
    """Main of a worker. A failure of the source is sent, for the parent to raise."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    while True:
        message: _Message
        try:
            message = list(source.block(index))
        except Exception as error:  # noqa: BLE001 (the border of a process; the parent raises it)
            message = f"{type(error).__name__}: {error}"
        while True:
            try:
                channel.put(message, timeout=_POLL_S)
                break
            except queue.Full:
                if not parent.is_alive():
                    return
        if isinstance(message, str):
            return
        index += stride
