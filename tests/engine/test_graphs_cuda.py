"""What a recording must survive: Python's collector, which may end other graphs in the middle of it."""

import gc

import pytest
import torch
from torch import Tensor

from benthic.engine import graphs as recording
from benthic.engine.graphs import CudaGraphs

pytestmark = pytest.mark.gpu

TRIALS = 2
"""Calls before the one that is recorded."""


class Work:
    """Leaves a graph to the collector when it is recorded, and makes so many objects that the collector would run."""

    def __init__(self) -> None:
        self._x = torch.ones(4, device="cuda")
        self._victims: list[object] = [CudaGraphs(torch.device("cuda")).capture(lambda: self._x + 1)]
        self._calls = 0

    def __call__(self) -> Tensor:
        self._calls += 1
        if self._calls > TRIALS and self._victims:
            cycle: dict[str, object] = {"replay": self._victims.pop()}
            cycle["itself"] = cycle
            del cycle
        kept = [[number] for number in range(10_000)]
        return self._x * len(kept)


@pytest.fixture
def eager_collector() -> object:
    thresholds = gc.get_threshold()
    gc.collect()
    gc.set_threshold(100, 1, 1)
    yield
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("eager_collector")
def test_a_recording_survives_cycles_that_hold_other_graphs() -> None:
    replay = CudaGraphs(torch.device("cuda")).capture(Work())
    assert replay().tolist() == [10_000.0] * 4
    assert gc.isenabled()


@pytest.mark.usefixtures("eager_collector")
def test_the_collector_would_break_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_no_collection", torch.no_grad)
    with pytest.raises(RuntimeError, match="capture"):
        CudaGraphs(torch.device("cuda")).capture(Work())
    torch.cuda.synchronize()


def test_the_collector_is_as_it_was_after_a_recording_that_fails() -> None:
    calls = []

    def fails_when_recorded() -> None:
        calls.append(None)
        if len(calls) == TRIALS + 1:
            raise ValueError("third")

    with pytest.raises(ValueError, match="third"):
        CudaGraphs(torch.device("cuda")).capture(fails_when_recorded)
    assert gc.isenabled()
