"""What a recording must survive: Python's collector, which may end other graphs in the middle of it."""

import gc

import pytest
import torch
from torch import Tensor

from benthic.engine.graphs import CudaGraphs

pytestmark = pytest.mark.gpu


def left_behind(graphs: CudaGraphs) -> None:
    """A graph that only a cycle holds."""
    x = torch.ones(8, device="cuda")
    cycle: dict[str, object] = {"replay": graphs.capture(lambda: x + 1)}
    cycle["itself"] = cycle


def busy(x: Tensor) -> Tensor:
    """Work that makes so many objects that the collector would run."""
    kept: list[object] = []
    for _ in range(100):
        kept.extend([] for _ in range(1000))
        x = x * 2 - 1
    return x


def test_a_recording_survives_cycles_that_hold_other_graphs() -> None:
    others, graphs = CudaGraphs(torch.device("cuda")), CudaGraphs(torch.device("cuda"))
    x = torch.ones(4, device="cuda")
    thresholds = gc.get_threshold()
    gc.collect()
    gc.set_threshold(50, 1, 1)
    try:
        for _ in range(5):
            gc.disable()
            left_behind(others)
            gc.enable()
            replay = graphs.capture(lambda: busy(x))
            assert torch.equal(replay(), x)
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()


def test_the_collector_is_as_it_was_after_a_recording_that_fails() -> None:
    calls = []

    def fails_when_recorded() -> None:
        calls.append(None)
        if len(calls) == 3:
            raise ValueError("third")

    with pytest.raises(ValueError, match="third"):
        CudaGraphs(torch.device("cuda")).capture(fails_when_recorded)
    assert gc.isenabled()
