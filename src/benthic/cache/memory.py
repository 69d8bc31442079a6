"""How much memory there is, and how much a piece of work takes."""

import ctypes
import gc
import resource
from collections.abc import Callable
from pathlib import Path

import torch

KIB = 1024


def available_bytes(device: torch.device, *, root: Path = Path("/")) -> int:
    """Bytes that may still be taken: on CUDA the device's free memory, else what the system and its limits leave.

    Args:
        root: where /proc and /sys are looked for.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What torch keeps for reuse counts as used, and is ours.
        return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    found = [_meminfo(root / "proc/meminfo", "MemAvailable"), *_group_limits(root)]
    known = [size for size in found if size is not None]
    return max(0, min(known)) if known else 0


def measure_peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Runs `work`; returns the most memory that it held beyond what was held before.

    On the CPU this is the process's resident memory, of a second run: the first compiles kernels, which takes more
    than they do. Where the high-water mark cannot be reset, an earlier and higher mark makes the result too large,
    never too small.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return max(0, torch.cuda.max_memory_allocated(device) - before)
    work()
    _return_free_memory()
    _reset_high_water_mark()
    before = _status("VmRSS") or 0
    work()
    return max(0, _high_water_mark() - before)


def return_free_memory(device: torch.device) -> None:
    """Gives what was freed, and is kept for reuse, back to the device or the system: others may want it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    _return_free_memory()


def _return_free_memory() -> None:
    """What the allocator keeps for reuse would be taken by `work` unseen."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc
        trim(0)


def _reset_high_water_mark() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not Linux, or not permitted
        return


def _high_water_mark() -> int:
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


def _status(name: str) -> int | None:
    return _meminfo(Path("/proc/self/status"), name)


def _meminfo(path: Path, name: str) -> int | None:
    """The value of a line "name:  123 kB", in bytes."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * KIB
    return None


def _group_limits(root: Path) -> list[int | None]:
    """What the control groups of this process leave, in both versions of their files."""
    unified, old = root / "sys/fs/cgroup", root / "sys/fs/cgroup/memory"
    folders = [(unified, "memory.max", "memory.current"), (old, "memory.limit_in_bytes", "memory.usage_in_bytes")]
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        groups = []
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if not controllers:
            folders.append((unified / path.lstrip("/"), "memory.max", "memory.current"))
        elif "memory" in controllers.split(","):
            folders.append((old / path.lstrip("/"), "memory.limit_in_bytes", "memory.usage_in_bytes"))
    return [_left(folder, limit, usage) for folder, limit, usage in folders]


def _left(folder: Path, limit_name: str, usage_name: str) -> int | None:
    """Limit less usage; file pages that the kernel can drop do not count as used."""
    limit, usage = _number(folder / limit_name), _number(folder / usage_name)
    if limit is None or usage is None:
        return None
    return limit - usage + _droppable(folder / "memory.stat")


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or the word "max": no limit
        return None


def _droppable(path: Path) -> int:
    try:
        pairs = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return 0
    return next((int(value) for name, value in pairs if name in ("inactive_file", "total_inactive_file")), 0)
