"""Groups on the machine that runs the tests, and on trees of files that stand for other machines."""

import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from benthic.sandbox import Limits
from benthic.sandbox.linux import Cgroup, Hierarchy, Launch, find_hierarchy

HIERARCHY = find_hierarchy()
needs_groups = pytest.mark.skipif(HIERARCHY.mode == "none", reason="this user may make no control groups")
needs_memory = pytest.mark.skipif("memory" in HIERARCHY.missing, reason="no memory controller here")

FORK_BOMB = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n"
HOG = "data = []\nwhile True:\n    data.append(bytes(range(256)) * 40960)\n"


@pytest.fixture
def group() -> Iterator[Cgroup]:
    group = Cgroup(HIERARCHY, f"test-{os.getpid()}/{uuid.uuid4().hex[:12]}")
    yield group
    assert asyncio.run(group.remove()), "a test left its group"
    assert not Cgroup(HIERARCHY, group.name.partition("/")[0]).exists(), "the empty folder above was left"


def start(group: Cgroup, *argv: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        Launch(group=group).command(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def wait_until(condition: object, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)


@needs_groups
def test_a_launched_program_and_its_children_are_inside_from_their_first_instruction(group: Cgroup) -> None:
    group.create(Limits())
    with start(group, "/bin/sh", "-c", "sleep 30 & sleep 30") as process:
        wait_until(lambda: len(group.pids()) == 3)
        assert process.pid in group.pids()
        assert asyncio.run(group.kill())


@needs_groups
def test_killing_ends_a_fork_bomb_and_the_limit_of_processes_is_counted(group: Cgroup) -> None:
    group.create(Limits(num_processes=32))
    with start(group, sys.executable, "-ISc", FORK_BOMB):
        wait_until(lambda: group.refused_processes() > 0)
        assert len(group.pids()) <= 32
        begun = time.monotonic()
        assert asyncio.run(group.kill())
        assert time.monotonic() - begun < 5
    assert group.pids() == []


@needs_groups
@needs_memory
def test_a_memory_hog_is_ended_at_the_limit_and_counted(group: Cgroup) -> None:
    group.create(Limits(memory_bytes=64 << 20))
    with start(group, sys.executable, "-ISc", HOG) as process:
        assert process.wait(30) == -9
    assert group.out_of_memory_kills() == 1
    assert 32 << 20 < group.usage().peak_memory_bytes <= 64 << 20
    assert group.usage().cpu_s > 0


@needs_groups
def test_a_frozen_group_does_nothing_until_thawed_and_can_be_killed_while_frozen(group: Cgroup, tmp_path: Path) -> None:
    group.create(Limits())
    beat = tmp_path / "beat"
    with start(group, "/bin/sh", "-c", f"while :; do echo >> {beat}; sleep 0.005; done"):
        wait_until(beat.exists)
        group.freeze()
        wait_until(group.is_frozen)
        size = beat.stat().st_size
        time.sleep(0.05)
        assert beat.stat().st_size == size
        group.thaw()
        wait_until(lambda: beat.stat().st_size > size)
        group.freeze()
        wait_until(group.is_frozen)
        assert asyncio.run(group.kill())


@needs_groups
def test_a_daemon_that_left_its_session_and_parent_is_killed_too(group: Cgroup) -> None:
    group.create(Limits())
    with start(group, "setsid", "--fork", "sleep", "60") as process:
        process.wait(10)
        wait_until(lambda: group.pids() != [])
        assert asyncio.run(group.kill())
    assert group.pids() == []


@needs_groups
def test_removing_works_in_any_state_and_more_than_once(group: Cgroup) -> None:
    assert asyncio.run(group.remove())
    group.create(Limits())
    (group.folders()[0] / "made-inside").mkdir()
    assert asyncio.run(group.remove())
    assert asyncio.run(group.remove())
    assert not group.exists()


def fake_version2(tmp_path: Path, controllers: str) -> tuple[Path, Path]:
    mount = tmp_path / "unified"
    mount.mkdir()
    for file, text in (("cgroup.controllers", controllers), ("cgroup.subtree_control", ""), ("cgroup.procs", "")):
        (mount / file).write_text(text)
    info = tmp_path / "mountinfo"
    info.write_text(f"30 23 0:26 / {mount} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n")
    return mount, info


def test_a_version_2_machine_gets_its_limits_in_the_words_of_version_2(tmp_path: Path) -> None:
    hierarchy = Hierarchy(
        version1={}, version2=tmp_path, version2_controllers=frozenset({"cpu", "memory", "pids", "io"})
    )
    assert hierarchy.mode == "v2"
    assert hierarchy.missing == ()
    group = Cgroup(hierarchy, "tag/id")
    group.create(Limits(cpus=0.5, cpu_class="batch", memory_bytes=1 << 20, num_processes=7))
    written = {file.name: file.read_text() for file in group.folders()[0].iterdir()}
    assert written == {
        "cpu.max": "50000 100000",
        "cpu.idle": "1",
        "memory.max": str(1 << 20),
        "memory.swap.max": "0",
        "pids.max": "7",
    }
    assert (tmp_path / "tag" / "cgroup.subtree_control").exists(), "groups inside would have no controllers"


def test_version_2_files_are_read_for_usage_and_for_the_reason_of_a_death(tmp_path: Path) -> None:
    group = Cgroup(Hierarchy(version1={}, version2=tmp_path), "id")
    folder = group.folders()[0]
    folder.mkdir()
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 11\noom 3\noom_kill 2\n")
    (folder / "pids.events").write_text("max 5\n")
    (folder / "memory.peak").write_text("4096\n")
    (folder / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (folder / "io.stat").write_text("8:0 rbytes=1 wbytes=30 rios=1\n8:16 rbytes=5 wbytes=12 rios=1\n")
    assert group.out_of_memory_kills() == 2
    assert group.refused_processes() == 5
    usage = group.usage()
    assert (usage.cpu_s, usage.peak_memory_bytes, usage.written_bytes) == (2.5, 4096, 42)


def test_processes_outside_our_pid_namespace_are_never_signalled(tmp_path: Path) -> None:
    # The kernel lists them as 0, and a signal to 0 would go to our own process group.
    group = Cgroup(Hierarchy(version1={}, version2=tmp_path), "id")
    group.folders()[0].mkdir()
    (group.folders()[0] / "cgroup.procs").write_text("0\n0\n")
    assert group.pids() == []
    assert asyncio.run(group.kill(0.1))


def test_a_controller_that_the_parent_may_not_hand_on_is_reported_missing(tmp_path: Path) -> None:
    mount, info = fake_version2(tmp_path, "memory pids")
    # A plain file takes the last word written into it, as if the parent had kept the others.
    hierarchy = find_hierarchy(info, tmp_path / "none")
    assert (mount / "cgroup.subtree_control").read_text() == "+pids"
    assert hierarchy.mode == "v2"
    assert "cpu" in hierarchy.missing


def test_a_machine_without_control_groups_says_so(tmp_path: Path) -> None:
    info = tmp_path / "mountinfo"
    info.write_text("23 1 0:5 / /proc rw - proc proc rw\n")
    hierarchy = find_hierarchy(info)
    assert hierarchy.mode == "none"
    assert hierarchy.missing == ("cpu", "memory", "pids")


def test_controllers_mounted_together_share_one_folder(tmp_path: Path) -> None:
    info = tmp_path / "mountinfo"
    info.write_text(
        f"1 1 0:1 / {tmp_path} rw - cgroup cgroup rw,cpu,cpuacct\n2 1 0:2 / {tmp_path} rw - cgroup cgroup rw,name=x\n"
    )
    hierarchy = find_hierarchy(info)
    assert hierarchy.version1.keys() == {"cpu", "cpuacct"}
    assert hierarchy.trees == (tmp_path / "benthic",)
