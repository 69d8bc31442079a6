"""Compiles kernels for Hopper on a machine without a GPU, and reads what the assembler made of them.

Triton: launchers run as they do in production, on meta tensors; inside `compiled_only` a launch compiles its kernel for
sm_90a and runs nothing. CUDA C++: nvcc and its own report.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benthic.kernels.cuda_library import CudaLibrary


@dataclass(frozen=True, slots=True)
class Built:
    """One compiled kernel: registers a thread, bytes of spill and of shared memory a program, instructions of wgmma."""

    name: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    num_wgmma: int


@contextmanager
def compiled_only() -> Iterator[list[Any]]:
    """Inside, launches compile and collect instead of running; works without a driver."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    class NoDevice:
        """What Triton asks of a driver in order to compile."""

        get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
        get_current_device = staticmethod(lambda: 0)
        get_current_stream = staticmethod(lambda device: 0)

    collected: list[Any] = []
    run, active = JITFunction.run, driver._active

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        kernel = kernel.result() if hasattr(kernel, "result") else kernel
        if all(kernel is not other for other in collected):
            collected.append(kernel)
        return kernel

    driver.set_active(NoDevice())
    JITFunction.run = compile_only
    try:
        yield collected
    finally:
        JITFunction.run = run
        driver._active = active


def triton_builds(name: str, launch: Callable[[], object]) -> list[Built]:
    """Every kernel that `launch` would run, named `name: function`, numbered where a function comes twice."""
    with compiled_only() as kernels:
        launch()
    assert kernels, f"{name} launched no Triton kernel"
    builds: list[Built] = []
    for kernel in kernels:
        label, count = f"{name}: {kernel.name}", sum(other.name == kernel.name for other in kernels[: len(builds)])
        registers, spills = _resources(kernel.asm["cubin"])
        wgmma = len(re.findall(r"wgmma\.mma_async", kernel.asm["ptx"]))
        builds.append(Built(f"{label} {count}" if count else label, registers, spills, kernel.metadata.shared, wgmma))
    return builds


def _resources(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of local memory) of the only kernel of a cubin."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        shown = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", shown)
    assert found is not None, f"cuobjdump said nothing of resources: {shown[-500:]}"
    return int(found[1]), int(found[2])


def cuda_builds(library: CudaLibrary) -> list[Built]:
    """Every kernel of a source; shared memory is the static part, and wgmma is counted in the whole source's code."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "kernels.cubin"
        report = library.cubin(target)
        num_wgmma = _wgmma_by_kernel(target)
    builds = []
    for part in report.split("Compiling entry function")[1:]:
        name = re.search(r"'(\w+)'", part)
        # A local array that no register holds is in the stack's frame and counts as no spill.
        registers, spills = re.search(r"Used (\d+) registers", part), re.findall(r"(\d+) bytes (?:spill|stack)", part)
        shared = re.search(r"(\d+) bytes smem", part)
        assert name is not None and registers is not None, part
        label = f"{library.source.name}: {name[1]}"
        size = int(shared[1]) if shared else 0
        builds.append(Built(label, int(registers[1]), max(map(int, spills)), size, num_wgmma.get(name[1], 0)))
    return builds


def _wgmma_by_kernel(cubin: Path) -> dict[str, int]:
    """Tensor instructions of Hopper (HGMMA, QGMMA, ...) in the machine code of each function."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    shown = subprocess.run([tool, "-sass", cubin], capture_output=True, text=True, check=True).stdout
    found = {}
    for part in shown.split("Function : ")[1:]:
        found[part.split(None, 1)[0]] = len(re.findall(r"\b[HQI]GMMA\.", part))
    return found
