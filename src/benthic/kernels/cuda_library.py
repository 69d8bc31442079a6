"""CUDA C++ sources beside their operations: compiled by nvcc at first use, kept on disk, called through ctypes.

A source exports plain C functions that take addresses, sizes and a stream, launch their kernels and return a
cudaError_t. The library's name is the hash of all that went into it, so a changed source is compiled again and two
processes may compile at once: whoever is last replaces equal with equal.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from benthic.errors import KernelUnavailable

ARCHITECTURE = "-gencode=arch=compute_90a,code=sm_90a"
"""Hopper with its own instructions (wgmma, setmaxnreg), which sm_90 alone refuses."""
FLAGS = (ARCHITECTURE, "-O3", "-std=c++17", "-lineinfo")
HOME = Path(__file__).parent
HEADERS = tuple(sorted(HOME.glob("*.cuh")))
"""What any source may include, beside the headers of its own folder and the standard ones of CUDA."""
COMPILE_LIMIT_S = 600


class CudaLibrary:
    """One .cu file and its exported functions; nothing is compiled before the first `function`.

    Args:
        source: the file.
        defines: macros, NAME or NAME=VALUE: another set of them is another library.
    """

    def __init__(self, source: Path, defines: Sequence[str] = ()) -> None:
        self.source, self.defines = source, tuple(defines)
        self._library: ctypes.CDLL | None = None

    def function(self, name: str, argument_types: Sequence[Any]) -> Callable[..., None]:
        """An exported function; raises KernelUnavailable if its launch fails.

        Args:
            argument_types: of ctypes; addresses and the stream are `c_void_p`.

        Raises:
            KernelUnavailable: nothing compiles here, or this source does not.
        """
        if self._library is None:
            self._library = ctypes.CDLL(str(self.build()))
        entry = getattr(self._library, name)
        entry.argtypes, entry.restype = list(argument_types), ctypes.c_int

        def launch(*arguments: Any) -> None:
            error = entry(*arguments)
            if error:
                raise KernelUnavailable(f"{name} of {self.source.name} returned CUDA error {error}; 0 is success")

        return launch

    def path(self) -> Path:
        """Where the shared library of this very source lies once it is compiled."""
        return cache_folder() / f"{self.source.stem}-{self._key()}.so"

    def build(self) -> Path:
        """Compiles what is not on disk yet; returns the shared library."""
        target = self.path()
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                made = Path(folder) / target.name
                _nvcc("-shared", "-Xcompiler", "-fPIC", *self._arguments(), "-o", str(made))
                os.replace(made, target)
        return target

    def cubin(self, target: Path) -> str:
        """Compiles device code alone to `target`, without a GPU; returns what the assembler says of each kernel."""
        return _nvcc("-cubin", "-Xptxas", "-v", *self._arguments(), "-o", str(target))

    def _arguments(self) -> tuple[str, ...]:
        defines = tuple(f"-D{define}" for define in self.defines)
        return (*FLAGS, *defines, f"-I{HOME}", str(self.source))

    def _key(self) -> str:
        headers = [*HEADERS, *sorted(self.source.parent.glob("*.cuh"))]
        parts = [self.source.read_bytes(), *(header.read_bytes() for header in headers if header.exists())]
        parts += [" ".join((*FLAGS, *self.defines, _nvcc_version())).encode()]
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def missing_libraries(folder: Path = HOME) -> list[CudaLibrary]:
    """Libraries of the operations' sources that are not on disk yet."""
    libraries = [CudaLibrary(source) for source in sorted(folder.rglob("*.cu"))]
    return [library for library in libraries if not library.path().exists()]


def build_all(libraries: Sequence[CudaLibrary]) -> None:
    """Compiles libraries side by side: one after the other a first start takes minutes.

    Raises:
        KernelUnavailable: nothing compiles here, or a source does not.
    """
    with ThreadPoolExecutor(max_workers=max(1, min(len(libraries), os.cpu_count() or 1))) as pool:
        list(pool.map(CudaLibrary.build, libraries))


def cache_folder() -> Path:
    """Where compiled libraries lie: $BENTHIC_KERNEL_CACHE, or the user's cache folder."""
    named = os.environ.get("BENTHIC_KERNEL_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "benthic" / "kernels"


def has_cuda_compiler() -> bool:
    """True if nvcc is there: on the PATH, in $CUDA_HOME, or from the package nvidia-cuda-nvcc."""
    return find_nvcc() is not None


@cache
def find_nvcc() -> str | None:
    """The compiler's path; None if there is none."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [Path(home) / "bin" for home in homes if home]
    folders += sorted((Path(sysconfig.get_paths()["purelib"]) / "nvidia").glob("cu*/bin"))
    candidates = [shutil.which("nvcc"), *(str(folder / "nvcc") for folder in folders)]
    return next((path for path in candidates if path is not None and os.access(path, os.X_OK)), None)


@cache
def _nvcc_version() -> str:
    return _nvcc("--version")


def _nvcc(*arguments: str) -> str:
    """Runs the compiler; returns what it printed."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise KernelUnavailable(
            "nvcc was not found on the PATH, in CUDA_HOME or among Python's packages; "
            "install CUDA 13, or `pip install nvidia-cuda-nvcc`"
        )
    done = subprocess.run([nvcc, *arguments], capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False)
    if done.returncode:
        raise KernelUnavailable(f"nvcc failed with code {done.returncode}:\n{(done.stderr or done.stdout)[-4000:]}")
    return done.stdout + done.stderr
