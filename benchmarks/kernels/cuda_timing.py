"""How kernels are measured on a GPU: ours, the reference and a peer in one process, turn by turn.

    python benchmarks/kernels/bench_<op>_cuda.py [--only words] [--out benchmarks/results/h200.jsonl]

Each implementation is captured as a CUDA graph over several sets of inputs that together exceed the L2 cache, and the
graphs are replayed in turns, so that clocks and neighbours disturb all alike. One line a measurement: microseconds a
call (median of the turns, with their range), TFLOP/s, GB/s, share of the roof (the greater of the times that bytes and
operations need at the measured ceilings, over the time taken), and how many times faster the first implementation is.
A peer is only named where its package is installed. Without a GPU, or with words that no case holds, a bench says so
and ends with code 1.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

TURNS = 15
FEWEST_CALLS = 8
"""Calls of a graph: a replay should last longer than the clock is coarse."""
L2_BYTES = 60 << 20
COPY_BYTES_S = 4.26e12
"""Read and written by a device-to-device copy, measured on an H200."""
FLOPS_S = {"fp8": 1.447e15, "bf16": 765e12, "tf32": 383e12, "fp32": 67e12}
"""Measured on an H200 by library products of 8192 cubed; fp32 is the datasheet's."""

Calls = Sequence[Callable[[], object]]
"""One call a set of inputs."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured: implementations by name, the first one ours.

    `num_bytes` and `flops` of one call, if nothing is read twice; `precision` names the ceiling of `flops`.
    """

    name: str
    implementations: Mapping[str, Calls]
    num_bytes: int
    flops: int = 0
    precision: str = "bf16"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One implementation of one case; `ratio` is its time over that of the first."""

    op: str
    case: str
    implementation: str
    us: float
    least_us: float
    most_us: float
    tflops: float
    gb_s: float
    roof: float
    ratio: float
    context: dict[str, str] = field(default_factory=dict)


def num_sets(set_bytes: int, most: int = 64) -> int:
    """How many sets of inputs of that size defeat the L2 cache."""
    return max(1, min(most, -(-4 * L2_BYTES // max(set_bytes, 1))))


def gpu_name() -> str:
    """The GPU's name; ends the program, in words, where torch sees none."""
    if not torch.cuda.is_available():
        sys.exit(f"no GPU: torch {torch.__version__} sees no CUDA device here; this bench measures on one")
    return torch.cuda.get_device_name()


def positive(text: str) -> int:
    """A number of rows, tokens or sequences from the command line."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {number}; it takes whole numbers from 1")
    return number


def main(
    op: str,
    cases: Callable[[], Iterator[Case]],
    shown: Callable[[list["Measurement"]], list[str]] | None = None,
) -> None:
    """Measures and prints every case; appends to `--out` if given. `shown`: what is printed of one; None for all."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", default="", help="measure the cases whose name holds this")
    arguments.add_argument("--out", type=Path, help="append measurements there, one JSON object a line")
    options = arguments.parse_args()
    name = gpu_name()
    torch.manual_seed(0)
    print(f"# {name}, torch {torch.__version__}: {op}")
    seen: list[str] = []
    with torch.inference_mode():
        for case in cases():
            seen.append(case.name)
            if options.only not in case.name:
                continue
            measurements = compare(op, case)
            print("\n".join(map(line, measurements) if shown is None else shown(measurements)), flush=True)
            if options.out is not None:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                with options.out.open("a") as file:
                    file.writelines(json.dumps(asdict(measured)) + "\n" for measured in measurements)
    if not any(options.only in found for found in seen):
        sys.exit(f"--only {options.only!r} is in the name of no case; they are: {', '.join(seen)}")


def compare(op: str, case: Case) -> list[Measurement]:
    """Times all implementations of a case in turns."""
    graphs = {name: _captured(calls) for name, calls in case.implementations.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(TURNS + 2):
        for name, (graph, count) in graphs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn >= 2:  # the first two warm caches and clocks
                times[name].append(start.elapsed_time(end) * 1e3 / count)
    first = statistics.median(next(iter(times.values())))
    return [_measurement(op, case, name, found, first) for name, found in times.items()]


def line(m: Measurement) -> str:
    """A measurement as it is printed."""
    rates = f"{m.tflops:8.1f} TFLOP/s {m.gb_s:7.0f} GB/s {100 * m.roof:5.1f} %"
    spread = f"({m.least_us:.1f}-{m.most_us:.1f})"
    return f"{m.op:<16} {m.case:<30} {m.implementation:<12} {m.us:9.1f} us {spread:<16} {rates} {m.ratio:6.2f}x"


def _captured(calls: Calls) -> tuple[torch.cuda.CUDAGraph, int]:
    """A graph of all calls, repeated up to `FEWEST_CALLS`, and their number."""
    repeated = list(calls) * -(-FEWEST_CALLS // len(calls))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in repeated:
            call()
    return graph, len(repeated)


def _measurement(op: str, case: Case, name: str, times: list[float], first: float) -> Measurement:
    us = statistics.median(times)
    needed_us = max(case.num_bytes / COPY_BYTES_S, case.flops / FLOPS_S[case.precision]) * 1e6
    return Measurement(
        op=op,
        case=case.name,
        implementation=name,
        us=us,
        least_us=min(times),
        most_us=max(times),
        tflops=case.flops / us / 1e6,
        gb_s=case.num_bytes / us / 1e3,
        roof=needed_us / us,
        ratio=us / first,
        context=_context(),
    )


def _context() -> dict[str, str]:
    """What a number without it says nothing: commit, device, versions, command."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    import triton

    return {
        "commit": done.stdout.strip() or "unknown",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "command": shlex.join(["python", *sys.argv]),
    }
