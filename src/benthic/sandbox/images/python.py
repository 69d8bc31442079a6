"""The tiny image with a Python: the machine's own interpreter, its standard library, and the C libraries they load.

Made from what is installed, in a few seconds, without a network; nothing of `site-packages` comes along.
"""

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benthic.sandbox.errors import ImageError
from benthic.sandbox.images.entry import Entry
from benthic.sandbox.images.image import Image
from benthic.sandbox.images.store import Store
from benthic.sandbox.images.tiny import ensure_tiny
from benthic.sandbox.images.walk import Walk
from benthic.sandbox.images.writer import TreeWriter

PYTHON = "python:host"
INTERPRETER = Path("/usr/bin/python3")
LEFT_OUT = ("dist-packages", "site-packages", "ensurepip", "idlelib", "lib2to3", "test", "tkinter", "turtledemo")
"""Of the standard library."""
_ASK = """
import json, sys, sysconfig
print(json.dumps([sysconfig.get_path("stdlib"), sysconfig.get_config_var("DESTSHARED"), sys.executable]))
"""
_LOADED = re.compile(r"(?:=>\s+|^\s+)(/\S+) \(0x", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Parts:
    program: Path
    library: Path
    shared: tuple[Path, ...]


def ensure_python(store: Store) -> Image:
    """The image, made on first use.

    Raises:
        ImageError: there is no `/usr/bin/python3` on this machine; the message names the package.
    """
    if store.has_image(PYTHON):
        return store.image(PYTHON)
    parts = _find(INTERPRETER)
    with store.adding():
        tiny = ensure_tiny(store)
        layer = store.add_layer(
            lambda writer: _fill(writer, parts), kind="toolkit", source=f"built in, from {parts.program}"
        )
        return store.add_image([*tiny.layers, layer.digest], tiny.config, name=PYTHON)


def _find(interpreter: Path) -> _Parts:
    if not interpreter.exists():
        raise ImageError(f"there is no {interpreter} on this machine; install the Debian package python3")
    library, modules, _ = json.loads(_said([str(interpreter), "-I", "-S", "-c", _ASK]))
    program = interpreter.resolve()
    objects = [program, *sorted(Path(modules).glob("*.so"))]
    loaded = set(_LOADED.findall(_said(["ldd", *map(str, objects)])))
    return _Parts(program, Path(library), tuple(Path(path) for path in sorted(loaded)))


def _fill(writer: TreeWriter, parts: _Parts) -> None:
    for path in (parts.program, *parts.shared):
        found = path.stat()
        mode = found.st_mode & 0o777
        entry = Entry(path=_relative(path), type="file", mode=mode, size=found.st_size, modified_ns=found.st_mtime_ns)
        with path.open("rb") as data:
            writer.file(entry, data)
    for name in ("python3", "python"):
        if name != parts.program.name:
            writer.other(Entry(path=f"usr/bin/{name}", type="link", mode=0o777, target=str(parts.program)))
    # Compiled modules name the time of their source, so times are kept.
    Walk(at=_relative(parts.library), owner=0, left_out=LEFT_OUT).copy(parts.library, writer)


def _relative(path: Path) -> str:
    return str(path).lstrip("/")


def _said(command: list[str]) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )
    if done.returncode:
        raise ImageError(f"{command[0]} failed: {done.stderr.strip()[-300:]}; install the Debian package python3")
    return done.stdout
