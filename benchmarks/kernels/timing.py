"""How the kernel benches measure, and the one form in which they report.

    python benchmarks/kernels/bench_rms_norm.py [--device cuda] [--rows 1 4 32 2000]

One line one measurement: operation, rows, implementation, microseconds (median of the repeats, with their range),
GB/s of the bytes that must move, GFLOP/s where that matters, speed beside the reference. CPU times are of this thread
alone, so other processes disturb them less; weights stay in cache, which serving does not grant them.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from cuda_timing import gpu_name, positive

REPEATS = 7
LEAST_S = 0.02


def main(op: str, cases: Callable[[int, torch.device], Iterator[tuple[str, Callable[..., Any], int, int]]]) -> None:
    """Measures `cases(rows, device)`: (name, call taking `impl`, bytes moved, floating-point operations)."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments.add_argument("--rows", type=positive, nargs="+", default=[1, 4, 32, 2000])
    options = arguments.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = torch.device(options.device)
    name = gpu_name() if device.type == "cuda" else platform.processor() or platform.machine()
    print(f"# {name}, torch {torch.__version__}, 1 thread")
    with torch.inference_mode():
        for rows in options.rows:
            for case, call, num_bytes, flops in cases(rows, device):
                _report(op, case, rows, call, num_bytes, flops, device)


def _report(
    op: str, case: str, rows: int, call: Callable[..., Any], num_bytes: int, flops: int, device: torch.device
) -> None:
    base = 0.0
    for impl in ("reference", "auto"):
        times = _times(lambda impl=impl: call(impl=impl), device)
        middle = statistics.median(times)
        base = base or middle
        rates = f"{num_bytes / middle / 1e9:8.2f} GB/s" + (f" {flops / middle / 1e9:9.1f} GFLOP/s" if flops else "")
        spread = f"{min(times) * 1e6:.1f}-{max(times) * 1e6:.1f}"
        print(
            f"{op:<16} {case:<22} {rows:>6} {impl:<10} {middle * 1e6:10.1f} us ({spread}) {rates} {base / middle:6.2f}x"
        )


def _times(call: Callable[[], Any], device: torch.device) -> list[float]:
    """Seconds a call, one value a repeat of at least 20 ms."""
    wait = torch.cuda.synchronize if device.type == "cuda" else _nothing
    clock = time.perf_counter if device.type == "cuda" else time.thread_time
    for _ in range(3):
        call()
    wait()
    number = 1
    while True:
        start = clock()
        for _ in range(number):
            call()
        wait()
        if clock() - start > LEAST_S:
            break
        number *= 2
    repeats = []
    for _ in range(REPEATS):
        start = clock()
        for _ in range(number):
            call()
        wait()
        repeats.append((clock() - start) / number)
    return repeats


def _nothing() -> None:
    pass


def on_device(inputs: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Inputs of a case generator on `device`, tuples of tensors included."""

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(device)
        return type(value)(*(move(part) for part in value)) if isinstance(value, tuple) else value

    return {name: move(value) for name, value in inputs.items()}
