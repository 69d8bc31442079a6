"""The machine itself: system, processor, memory, disk, and what one process may have of them.

Reading is apart from judging: judgements are functions of plain values, so that a test can be any machine.
"""

import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path

from benthic.doctor.finding import Finding

GIB = 1 << 30
LEAST_MEMORY = 2 * GIB
"""The bundled model serves in less; compiling its kernels takes most of this."""
LEAST_DISK = 1 * GIB
ENOUGH_FILES = 4096
DEFAULT_PORT = 8000
_CPU_INFO = Path("/proc/cpuinfo")
_SHOWN_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve")


def machine_findings() -> list[Finding]:
    """Everything about this machine that can be told without a library."""
    model, flags = _processor()
    temporary = Path(tempfile.gettempdir())
    return [
        judge_system(sys.platform, sys.version_info[:2], platform.python_version()),
        judge_processor(model, flags, platform.machine(), len(os.sched_getaffinity(0))),
        judge_disk("temporary files", temporary, shutil.disk_usage(temporary).free, os.access(temporary, os.W_OK)),
        judge_files(_file_limit()),
        judge_port(DEFAULT_PORT, _is_free(DEFAULT_PORT)),
    ]


def memory_findings() -> list[Finding]:
    """Memory, by the same count as the engine's own plan of it."""
    import torch

    from benthic.cache.memory import available_bytes

    return [judge_memory(available_bytes(torch.device("cpu")))]


def judge_system(system: str, version: tuple[int, ...], shown: str) -> Finding:
    """Operating system and interpreter."""
    found = f"Python {shown} on {system}"
    if version < (3, 11):
        return Finding("python", "broken", found, "install Python 3.11 or later and make the environment anew with it")
    if system != "linux":
        return Finding("python", "broken", found, "use Linux: an engine's process is watched by means of its kernel")
    return Finding("python", "ok", found)


def judge_processor(model: str, flags: Collection[str], architecture: str, num_cores: int) -> Finding:
    """Cores that this process may use, and vector instructions."""
    shown = ", ".join(name for name in _SHOWN_FEATURES if name in flags) or "no vector instructions that help"
    found = f"{model}, {num_cores} core(s) for this process; {shown}"
    if architecture in ("x86_64", "AMD64") and "avx2" not in flags:
        return Finding("processor", "limit", found, "expect answers several times slower: use a processor with AVX2")
    if num_cores < 2:
        return Finding("processor", "limit", found, "give it two cores: one computes, the other talks to clients")
    return Finding("processor", "ok", found)


def judge_memory(available: int) -> Finding:
    """Memory that can be had now, by the machine and by the group of this process."""
    found = f"{available / GIB:.1f} GiB available"
    if available < LEAST_MEMORY:
        return Finding("memory", "limit", found, f"free some, up to {LEAST_MEMORY / GIB:.0f} GiB; or bound the cache "
                       "with --engine.cache_bytes")  # fmt: skip
    return Finding("memory", "ok", found)


def judge_disk(name: str, folder: Path, free: int, is_writable: bool) -> Finding:
    """Room for files, and the right to make them."""
    found = f"{folder}, {free / GIB:.1f} GiB free"
    if not is_writable:
        return Finding(name, "broken", f"{folder} cannot be written to", f"allow it, or name another place for {name}")
    if free < LEAST_DISK:
        return Finding(name, "limit", found, f"free some: traces and pictures of stalls go there ({name})")
    return Finding(name, "ok", found)


def judge_files(limit: int | None) -> Finding:
    """Open files: each client is one."""
    if limit is None or limit >= ENOUGH_FILES:
        return Finding("open files", "ok", "no limit" if limit is None else f"at most {limit}")
    return Finding("open files", "limit", f"at most {limit}", f"for many clients at once: ulimit -n {ENOUGH_FILES}")


def judge_port(port: int, is_free: bool) -> Finding:
    """The port that `benthic serve` takes when it is not told another."""
    if is_free:
        return Finding("port", "ok", f"{port} is free")
    return Finding("port", "limit", f"{port} is taken", "serve with --port or --next-free-port, or end what holds it")


def _processor() -> tuple[str, frozenset[str]]:
    """Name and feature flags, as Linux tells them."""
    lines = _CPU_INFO.read_text().splitlines() if _CPU_INFO.exists() else []
    model = _field(lines, "model name") or platform.processor() or platform.machine()
    return model, frozenset((_field(lines, "flags") or _field(lines, "Features") or "").split())


def _field(lines: Iterable[str], name: str) -> str:
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _file_limit() -> int | None:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
