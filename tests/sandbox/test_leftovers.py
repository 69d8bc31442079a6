"""The lister of what sandboxes leave behind sees what is there, and nothing of what is meant to stay."""

import os
import subprocess
from pathlib import Path

from tests.sandbox.leftovers import left


def test_pipes_drafts_homes_and_processes_are_listed(tmp_path: Path) -> None:
    for name in ("homes/0123456789ab", "trajectories", "store/owners", "store/layers"):
        (tmp_path / name).mkdir(parents=True)
    os.mkfifo(tmp_path / "homes" / "0123456789ab" / "console")
    (tmp_path / "store" / "layers" / ".half").mkdir()
    (tmp_path / "store" / "owners" / "machine-0123456789ab").touch()
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path) as sleeper:
        try:
            found = left(tmp_path)
        finally:
            sleeper.kill()
    assert sorted(line.split(" /")[0].split(" stands")[0] for line in found) == sorted(
        ["file", "socket or pipe", "draft", "holder of layers", f"process {sleeper.pid}"]
    )


def test_what_an_image_holds_stays(tmp_path: Path) -> None:
    tree = tmp_path / "store" / "layers" / ("0" * 64) / "tree"
    tree.mkdir(parents=True)
    (tmp_path / "homes").mkdir()
    os.mkfifo(tree / "fifo")
    (tree / ".profile").touch()
    assert left(tmp_path) == []
