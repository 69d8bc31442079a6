"""Times and kernels of a call: replays of its CUDA graph, and what the profiler saw of one."""

import argparse
import statistics
import subprocess
import sys
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


def gpu_name() -> str:
    """The GPU's name; ends the program, in words, where torch sees none."""
    if not torch.cuda.is_available():
        sys.exit(f"no GPU: torch {torch.__version__} sees no CUDA device here; this bench measures on one")
    return torch.cuda.get_device_name()


def commit() -> str:
    """The commit that is measured."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def positive(text: str) -> int:
    """A number of rows or tokens from the command line."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {number}; it takes whole numbers from 1")
    return number


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
