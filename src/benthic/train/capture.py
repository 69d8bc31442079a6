"""The step as a CUDA graph: recorded once, then replayed with new values in the same places.

A step of the small model is some ten thousand launches, which cost the host more than the work costs the device.
Batches of a stage have one shape, and what else changes lives in device tensors, so a recorded step serves the whole
stage; another policy (rounded weights, dense selection) is another recording.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from benthic.train.feed import DeviceBatch
from benthic.train.routing_counts import RoutingCounts
from benthic.train.step import StepValues, TrainStep

_WARM_UP_STEPS = 2


@dataclass(frozen=True, slots=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    batches: list[DeviceBatch]
    values: StepValues


class CapturedStep:
    """Does what `TrainStep` does, for batches of one layout, on CUDA."""

    def __init__(self, step: TrainStep) -> None:
        self._step = step
        self._recordings: dict[tuple[int, bool, bool], _Recording] = {}

    def __call__(
        self,
        batches: Sequence[DeviceBatch],
        *,
        learning_rate: float,
        balance_rate: float,
        dense_selection: bool,
        rounded: bool,
    ) -> StepValues:
        """One step; see `TrainStep`."""
        key = (len(batches), dense_selection, rounded)
        if key not in self._recordings:
            # One recording at a time: its private memory is that of a whole step.
            self._recordings.clear()
            self._recordings[key] = self._record(batches, dense_selection, rounded)
        recording = self._recordings[key]
        for place, batch in zip(recording.batches, batches, strict=True):
            place.copy_(batch)
        self._step.set_rates(learning_rate, balance_rate)
        recording.graph.replay()
        metrics, counts = recording.values
        return StepValues(metrics.clone(), RoutingCounts(*(count.clone() for count in counts)))

    def _record(self, batches: Sequence[DeviceBatch], dense_selection: bool, rounded: bool) -> _Recording:
        """Warms up on a side stream, which moves the weights, puts everything back, and records."""
        places = [_own_copy(batch) for batch in batches]
        before = {name: tensor.clone() for name, tensor in self._step.state().items()}
        self._step.set_rates(0.0, 0.0)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_STEPS):
                self._step.compute(places, dense_selection, rounded)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # The feed's thread goes on copying meanwhile; only this thread's calls are recorded and restricted.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            values = self._step.compute(places, dense_selection, rounded)
        with torch.no_grad():
            for name, tensor in self._step.state().items():
                tensor.copy_(before[name])
        return _Recording(graph, places, values)


def _own_copy(batch: DeviceBatch) -> DeviceBatch:
    """A batch in memory of its own, as places for later ones."""
    rows = replace(batch.rows, token_ids=batch.rows.token_ids.clone(), positions=batch.rows.positions.clone())
    return replace(
        batch,
        rows=rows,
        plan=batch.plan.map(torch.Tensor.clone),
        targets=batch.targets.clone(),
        weights=batch.weights.clone(),
        weight_sums=batch.weight_sums.clone(),
        sequences=batch.sequences._replace(
            of_row=batch.sequences.of_row.clone(), is_real=batch.sequences.is_real.clone()
        ),
        is_spared=batch.is_spared.clone(),
    )
