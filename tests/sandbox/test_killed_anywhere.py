"""A host is killed with -9 at any of its acts: the next one goes on with what lives, and nothing else is left.

See killing.py for what an act is, and leftovers.py for all that is looked for.
"""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benthic.sandbox import LocalHost, Reason, SandboxSpec, State
from benthic.sandbox.probe import all_drivers
from tests.sandbox.kinds import require_kind
from tests.sandbox.leftovers import left

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="what is looked for is root's")


def kill(kind: str, folder: Path, seed: int, count: int, limit_s: float) -> None:
    require_kind(kind)  # type: ignore[arg-type]
    command = [sys.executable, "-m", "tests.sandbox.killing", str(folder / "s"), kind, str(seed), str(count)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit_s, check=False, cwd=ROOT)
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    kills = [round_ for round_ in rounds if "act" in round_]
    assert [round_ for round_ in rounds if round_.get("left")] == [], done.stderr[-2000:]
    assert done.returncode == 0, f"after {kills[-1:]}: {done.stderr[-4000:]}"
    assert sum(round_["status"] == -9 for round_ in kills) >= 0.8 * len(kills) >= 1, kills


@pytest.mark.parametrize("kind", ["function", "container"])
def test_a_host_killed_at_any_act_leaves_nothing_but_what_lives(kind: str, tmp_path: Path, seed: int) -> None:
    kill(kind, tmp_path, seed, 5, 250)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["function", "container", "microvm", "vm"])
def test_a_host_killed_at_each_of_many_acts_leaves_nothing(kind: str, tmp_path: Path, seed: int) -> None:
    kill(kind, tmp_path, seed, 400 if kind in ("function", "container") else 60, 1750)


def test_a_home_that_has_lost_what_says_whose_it_was_is_swept_all_the_same(tmp_path: Path) -> None:
    require_kind("container")

    async def play() -> None:
        async with LocalHost(tmp_path, all_drivers(tmp_path)) as host:
            info = await host.create(SandboxSpec(kind="container"))
        record = host.folders.load(info.id)
        assert record is not None
        host.folders.save(replace(record, state=State.DEAD, reason=Reason.CRASHED))
        (host.folders.home(info.id) / "state.json").unlink()
        assert any(line.startswith("process") for line in left(tmp_path))
        async with LocalHost(tmp_path, all_drivers(tmp_path)) as host:
            assert await host.reconcile() == [f"folder {host.folders.home(info.id)}"]
        assert left(tmp_path) == []

    asyncio.run(play())


def test_what_is_looked_for_is_found(tmp_path: Path) -> None:
    """The list is worth nothing if it overlooks things."""
    home = tmp_path / "homes" / "0123456789ab"
    home.mkdir(parents=True)
    (tmp_path / "trajectories" / "0123456789ab").mkdir(parents=True)
    (tmp_path / "store" / "owners").mkdir(parents=True)
    (tmp_path / "store" / "owners" / "machine-0123456789ab").touch()
    os.mkfifo(tmp_path / "store" / "pipe")
    subprocess.run(["mount", "-t", "tmpfs", "none", str(home)], check=True)
    sleeper = subprocess.Popen(["sleep", "60"], cwd=home)
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    try:
        found = left(tmp_path)
    finally:
        sleeper.kill()
        sleeper.wait()
        zombie.wait()
        subprocess.run(["umount", "-l", str(home)], check=True)
    for what in ("zombie", "mount ", "file ", "holder of layers", "trajectory without", "socket or pipe"):
        assert any(line.startswith(what) for line in found), (what, found)
    assert any(line.startswith(f"process {sleeper.pid} stands") for line in found), found
    home.rmdir()
    for path in (tmp_path / "store" / "pipe", tmp_path / "store" / "owners" / "machine-0123456789ab"):
        path.unlink()
    (tmp_path / "trajectories" / "0123456789ab").rmdir()
    assert left(tmp_path) == []
