"""GPUs, and the compilers that their kernels need."""

import os
import shutil
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from benthic.doctor.finding import Finding

GIB = 1 << 30
_HOPPER = (9, 0)
_TRITON_FROM = (8, 0)


class Gpu(NamedTuple):
    """One device as its driver tells it."""

    name: str
    capability: tuple[int, int]
    free_bytes: int
    total_bytes: int


def accelerator_findings() -> list[Finding]:
    """Each GPU, and what compiles for it; one line where there is none."""
    import torch

    gpus = _gpus()
    if not gpus:
        has_driver = shutil.which("nvidia-smi") is not None or os.path.exists("/proc/driver/nvidia")
        return [judge_absence(has_driver, torch.version.cuda, os.environ.get("CUDA_VISIBLE_DEVICES"))]
    findings = [judge_gpu(index, gpu) for index, gpu in enumerate(gpus)]
    findings.append(judge_triton(_version("triton"), shutil.which("cc") or shutil.which("gcc")))
    if any(gpu.capability == _HOPPER for gpu in gpus):
        findings += hopper_findings()
    return findings


def judge_absence(has_driver: bool, built_for: str | None, visible: str | None) -> Finding:
    """No GPU can be used: because there is none, or because something hides it."""
    if not has_driver:
        return Finding(
            "gpu", "limit", "none", "the CPU serves small models such as the bundled one; large ones need a Hopper GPU"
        )
    if built_for is None:
        return Finding("gpu", "broken", "a driver is here, and torch was built without CUDA", "install torch with CUDA")
    if visible == "":
        return Finding("gpu", "limit", "CUDA_VISIBLE_DEVICES is empty and hides them all", "unset CUDA_VISIBLE_DEVICES")
    return Finding(
        "gpu",
        "broken",
        f"a driver is here, and torch (for CUDA {built_for}) finds no device",
        f"compare with nvidia-smi: the driver may be older than CUDA {built_for}, or the device in a bad state",
    )


def judge_gpu(index: int, gpu: Gpu) -> Finding:
    """Which kernels a device gets."""
    major, minor = gpu.capability
    memory = f"{gpu.free_bytes / GIB:.1f} of {gpu.total_bytes / GIB:.1f} GiB free"
    found = f"{gpu.name}, compute capability {major}.{minor}, {memory}"
    name = f"gpu {index}"
    if gpu.capability < _TRITON_FROM:
        return Finding(name, "limit", found, "Triton's kernels want 8.0 (Ampere) or later: use --device cpu")
    if gpu.free_bytes < gpu.total_bytes // 2:
        return Finding(name, "limit", found, "another process holds more than half of it: end it, or pass --device")
    if gpu.capability != _HOPPER:
        return Finding(name, "limit", found, "Triton's kernels run here; those in CUDA C++ are for Hopper (9.0) alone")
    return Finding(name, "ok", found)


def judge_triton(found: str | None, compiler: str | None) -> Finding:
    """The compiler of most GPU kernels, and the C compiler that it calls."""
    if found is None:
        return Finding("triton", "broken", "not installed", "pip install 'benthic[gpu]'")
    if compiler is None:
        return Finding("triton", "broken", f"{found}, without a C compiler", "install one: apt install gcc")
    return Finding("triton", "ok", f"{found}, with {compiler}")


def hopper_findings() -> list[Finding]:
    """nvcc, and which of the CUDA C++ kernels are compiled already."""
    from benthic.kernels.cuda_library import cache_folder, find_nvcc, missing_libraries

    nvcc = find_nvcc()
    if nvcc is None:
        return [
            Finding(
                "nvcc",
                "limit",
                "not found: Triton's kernels stand in for those in CUDA C++, which are faster",
                "install CUDA 13, or `pip install nvidia-cuda-nvcc`, or set CUDA_HOME",
            )
        ]
    missing = len(missing_libraries())
    compiled = "all compiled" if not missing else f"{missing} to compile at the first start: a minute or two"
    return [Finding("nvcc", "ok", nvcc), Finding("cuda kernels", "ok", f"{cache_folder()}, {compiled}")]


def _gpus() -> list[Gpu]:
    import torch

    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        found.append(Gpu(torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index), free, total))
    return found


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
