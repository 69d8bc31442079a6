"""The lister of what sandboxes leave behind sees what is there, and nothing of what is meant to stay."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox.leftovers import left


@pytest.fixture
def root() -> Iterator[Path]:
    """Not in pytest's own folder, which the end of the session asks to be clean."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_pipes_drafts_homes_and_processes_are_listed(root: Path) -> None:
    for name in ("homes/0123456789ab", "trajectories", "store/owners", "store/layers"):
        (root / name).mkdir(parents=True)
    os.mkfifo(root / "homes" / "0123456789ab" / "console")
    (root / "store" / "layers" / ".half").mkdir()
    (root / "store" / "owners" / "machine-0123456789ab").touch()
    with subprocess.Popen(["sleep", "60"], cwd=root) as sleeper:
        try:
            found = left(root)
        finally:
            sleeper.kill()
    assert sorted(line.split(" /")[0].split(" stands")[0] for line in found) == sorted(
        ["file", "socket or pipe", "draft", "holder of layers", f"process {sleeper.pid}"]
    )


def test_what_an_image_holds_stays(root: Path) -> None:
    tree = root / "store" / "layers" / ("0" * 64) / "tree"
    tree.mkdir(parents=True)
    (root / "homes").mkdir()
    os.mkfifo(tree / "fifo")
    (tree / ".profile").touch()
    assert left(root) == []
