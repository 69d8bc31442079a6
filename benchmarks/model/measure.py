"""Times and kernels of a call: replays of its CUDA graph, and what the profiler saw of one."""

import statistics
from collections.abc import Callable
from typing import NamedTuple

import torch


class Launch(NamedTuple):
    """One kernel of a call."""

    name: str
    us: float


class Measured(NamedTuple):
    """`us` a call (median of replays); its kernels in order; whether it ran as a graph."""

    us: float
    launches: list[Launch]
    is_graph: bool


def measure(call: Callable[[], object], repeats: int = 15) -> Measured:
    """Captures a call and replays it. A call that cannot be captured is timed as it is."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    run, is_graph = _captured(call)
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return Measured(statistics.median(times), launches(run), is_graph)


def launches(run: Callable[[], object]) -> list[Launch]:
    """The kernels, copies and fills of one run, in order."""
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    events = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    return [Launch(event.name, event.time_range.elapsed_us()) for event in events]


def _captured(call: Callable[[], object]) -> tuple[Callable[[], object], bool]:
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except (RuntimeError, torch.AcceleratorError) as error:
        print(f"# not captured: {str(error).splitlines()[0][:150]}")
        torch.cuda.synchronize()
        return call, False
    return graph.replay, True
