"""The built-in image with a Python runs it, and from compiled modules."""

import os
import subprocess
from pathlib import Path

import pytest

from benthic.sandbox.images import Store, chosen_layers
from benthic.sandbox.images.python import INTERPRETER

PROGRAM = "import ctypes, json, sqlite3, ssl, sys, zoneinfo; print(json.__cached__, sys.prefix)"


@pytest.mark.skipif(os.geteuid() != 0 or not INTERPRETER.exists(), reason="needs root and the Debian package python3")
def test_python_of_the_host_runs_on_the_tiny_image(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    layers = chosen_layers(store, "python:host")
    assert chosen_layers(store, None, ["python:host"]) == layers
    root = tmp_path / "root"
    root.mkdir()
    try:
        trees = ":".join(str(tree) for tree in reversed(store.mount("test", layers)))
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", f"ro,lowerdir={trees}", str(root)], check=True)
        done = subprocess.run(
            ["chroot", str(root), "/usr/bin/python3", "-v", "-I", "-c", PROGRAM], capture_output=True, text=True
        )
    finally:
        subprocess.run(["umount", str(root)], check=True)
        store.release("test")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" /usr\n")
    assert "matches /usr/lib" in done.stderr, "no compiled module was found to fit its source"
