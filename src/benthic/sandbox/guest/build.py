"""Init is a small static C program, compiled at first use and kept on disk, as the CUDA sources are.

The program's name is the hash of its sources, flags and compiler, so a changed source is compiled again, and two
processes may compile at once: whoever is last replaces equal with equal.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benthic.sandbox.errors import StartFailed

SOURCES = Path(__file__).parent
FLAGS = ("-std=gnu11", "-O2", "-static", "-s")
COMPILERS = ("musl-gcc", "gcc", "cc")
"""In order of preference: musl makes a smaller program, and one that starts faster."""
COMPILE_LIMIT_S = 120


def build_init(*, compiler: str | None = None, flags: Sequence[str] = FLAGS, folder: Path | None = None) -> Path:
    """The path of init's program, compiled if this very source has not been yet.

    Args:
        compiler: a program on the PATH; None takes the first of `COMPILERS`.
        folder: where programs are kept; None is `cache_folder()`.

    Raises:
        StartFailed: no compiler here, or it refuses the source.
    """
    found = _find_compiler(compiler)
    target = (folder or cache_folder()) / f"init-{_key(found, flags)}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as made_in:
            made = Path(made_in) / "init"
            _compile(found, [*flags, "-o", str(made), *map(str, _sources(".c"))])
            os.replace(made, target)
    return target


def cache_folder() -> Path:
    """Where compiled programs lie: `benthic/sandbox` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "benthic" / "sandbox"


def _find_compiler(name: str | None) -> str:
    for candidate in COMPILERS if name is None else (name,):
        if path := shutil.which(candidate):
            return path
    raise StartFailed(
        f"no C compiler for init: {' and '.join(COMPILERS if name is None else (name,))} are not on the PATH; "
        "install Debian's musl-tools, or gcc with libc6-dev",
        stage="compile init",
    )


def _compile(compiler: str, arguments: Sequence[str]) -> None:
    done = subprocess.run([compiler, *arguments], capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False)
    if done.returncode:
        raise StartFailed(f"{compiler} refused init's source:\n{done.stderr[-4000:]}", stage="compile init")


def _sources(*suffixes: str) -> list[Path]:
    return sorted(path for path in SOURCES.iterdir() if path.suffix in suffixes)


def _key(compiler: str, flags: Sequence[str]) -> str:
    # Size and time of the compiler stand for its version: asking it would cost more than everything else here.
    status = os.stat(compiler)
    parts = [f"{compiler} {status.st_size} {status.st_mtime_ns} {' '.join(flags)}".encode()]
    parts += [part for path in _sources(".c", ".h") for part in (path.name.encode(), path.read_bytes())]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
