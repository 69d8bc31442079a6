"""Every resource ends at its limit; the sandbox goes on, and its neighbour notices nothing (see conftest.py)."""

import ctypes
import errno
import os
import time

import pytest

from benthic.sandbox import Reason
from benthic.sandbox.records import MIB
from tests.sandbox.security.kinds import LIMITS, SHARED_KERNEL, Inside

SPARE_FILES = 16
"""That a file system may have beyond the limit, for its own."""


@pytest.fixture
def bounded(inside: Inside) -> Inside:
    """Sandboxes that live through a memory that is full."""
    if inside.kind == "gvisor":
        pytest.skip("gVisor's kernel ends with what fills its memory, many threads too: see test_container_gvisor.py")
    return inside


def test_a_fork_bomb_is_held_at_the_limit_and_ended_at_its_time(bounded: Inside) -> None:
    began = time.monotonic()
    result = bounded.attack("fork-bomb", timeout_s=1.5)
    assert result.reason is Reason.TIMEOUT
    assert time.monotonic() - began < 15


def test_threads_count_as_processes(inside: Inside) -> None:
    assert 8 < int(inside.attack("threads").text) <= LIMITS.num_processes


@pytest.mark.parametrize("kind", ["anonymous", "shared", "segment", "file"])
def test_a_memory_hog_of_any_kind_is_ended_and_no_one_else(bounded: Inside, kind: str) -> None:
    before = bounded.wait(bounded.machine.out_of_memory_kills())
    result = bounded.attack("hog", kind, 1024)
    assert b"all" not in result.stdout
    assert result.returncode == -9 or result.text.strip() in (str(errno.ENOMEM), str(errno.ENOSPC)), result
    if bounded.kind in SHARED_KERNEL and result.returncode == -9:
        assert bounded.wait(bounded.machine.out_of_memory_kills()) > before
    assert bounded.wait(bounded.machine.death()) is None


@pytest.mark.parametrize("folder", ["/work", "/tmp", "/dev/shm"])
@pytest.mark.parametrize("way", ["kept", "unlinked"])
def test_a_file_system_is_full_before_the_memory_is(inside: Inside, folder: str, way: str) -> None:
    fill = f"/work/hostile fill {folder}/big{way}" + (" unlinked" if way == "unlinked" else "")
    result = inside.run(f"[ -d {folder} ] || exit 77; {fill} && {fill}2; rm -f {folder}/big*")
    if result.returncode == 77:
        pytest.skip(f"there is no {folder} in this kind")
    written = [int(line.split()[0]) for line in result.text.splitlines()]
    stopped = {errno.errorcode[int(line.split()[1])] for line in result.text.splitlines()}
    assert stopped <= {"EFBIG", "ENOSPC"}, result
    assert max(written) <= LIMITS.file_bytes // MIB
    allowed = LIMITS.memory_bytes if folder == "/dev/shm" else LIMITS.disk_bytes
    assert sum(written[: 2 if way == "kept" else 1]) <= allowed // MIB
    after = inside.run(f"echo x >{folder}/small && cat {folder}/small")
    assert after.text == "x\n", after


def test_a_file_of_holes_is_no_larger_than_any_other(inside: Inside) -> None:
    assert inside.errors("sparse", "/work/sparse") == ["EFBIG"]


@pytest.mark.parametrize("folder", ["/work", "/tmp"])
def test_many_small_files_end_at_their_number(inside: Inside, folder: str) -> None:
    count, error = inside.attack("files", folder, timeout_s=60).text.split()
    assert int(count) <= LIMITS.num_files + SPARE_FILES
    assert errno.errorcode[int(error)] in ("ENOSPC", "EDQUOT")


def test_descriptors_end_at_their_number(inside: Inside) -> None:
    count, error = inside.attack("descriptors").text.split()
    assert int(count) < LIMITS.num_open_files
    assert errno.errorcode[int(error)] == "EMFILE"


@pytest.mark.parametrize(
    ("thing", "most", "errors"), [("terminals", 64, ("ENOSPC", "EACCES", "EMFILE")), ("watches", 16, ("EMFILE",))]
)
def test_no_sandbox_takes_what_a_host_counts_for_all_together(
    inside: Inside, thing: str, most: int, errors: tuple[str, ...]
) -> None:
    if inside.kind not in SHARED_KERNEL:
        pytest.skip("these numbers are those of a kernel of its own")
    count, error = inside.attack("hoard", thing).text.split()
    assert errno.errorcode[int(error)] in errors
    if inside.kind not in ("function", "docker") or thing != "watches":  # counted there for the sandbox's own uid
        assert int(count) <= most
    watch = ctypes.CDLL(None).inotify_init()
    assert watch >= 0, "the host has none left"
    os.close(watch)


@pytest.mark.parametrize("shell", ["yes", "cat /dev/zero", "cat /dev/urandom", "yes >&2"])
def test_endless_output_is_bounded_and_ended_at_its_time(inside: Inside, shell: str) -> None:
    result = inside.run(shell, timeout_s=1)
    assert result.reason is Reason.TIMEOUT
    assert len(result.stdout) + len(result.stderr) <= 2 * LIMITS.output_bytes
    assert result.is_truncated


def test_a_command_deaf_to_signals_is_ended_with_its_daemons(inside: Inside) -> None:
    result = inside.attack("daemon", "stay", timeout_s=1)
    assert result.reason is Reason.TIMEOUT
    assert "daemon" not in inside.run("cat /proc/[0-9]*/comm").text


def test_a_daemon_that_holds_stdout_keeps_nobody_waiting(inside: Inside) -> None:
    began = time.monotonic()
    result = inside.attack("daemon", timeout_s=20)
    assert result.reason is Reason.EXITED
    assert time.monotonic() - began < 10
    inside.run("for f in /proc/[0-9]*/comm; do grep -q '^daemon$' $f && kill -9 $(basename $(dirname $f)); done; true")


def test_orphans_are_reaped(inside: Inside) -> None:
    for _ in range(6):  # more than the limit of processes in all
        assert inside.attack("zombies").returncode == 0
    time.sleep(0.2)
    assert inside.run("cat /proc/[0-9]*/stat | grep -c ') Z '").text == "0\n"


def test_nobody_gets_ahead_of_the_others(inside: Inside) -> None:
    if inside.kind == "gvisor":
        pytest.skip("gVisor takes priorities and does nothing with them; the host's are not touched")
    assert set(inside.errors("priority")) <= {"EPERM", "EACCES"}


def test_no_core_is_dumped(inside: Inside) -> None:
    result = inside.run("ulimit -c unlimited 2>/dev/null; ulimit -c; sh -c 'kill -SEGV $$'; ls -A /work")
    assert result.text.split() == ["0", "hostile"]


def test_processor_time_is_shared_with_the_neighbour(inside: Inside) -> None:
    burn = "for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done; sleep 1; echo over; kill $(jobs -p)"
    result = inside.run(burn, timeout_s=15)
    assert result.text == "over\n"
