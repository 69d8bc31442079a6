"""What a measurement ran on, in one line: a number without it says nothing."""

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_CPU_INFO = Path("/proc/cpuinfo")


def hardware_line(device: Any = "cpu", libraries: Iterable[str] = ("torch", "numba", "triton")) -> str:
    """A comment line: processor or accelerator, number of cores, Python, versions of libraries that are installed."""
    named = [f"{name} {found}" for name in libraries if (found := _version(name))]
    return "# " + ", ".join([_device_name(str(device)), f"Python {platform.python_version()}", *named])


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {os.cpu_count()} cores"


def _processor() -> str:
    if _CPU_INFO.exists():
        for line in _CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
