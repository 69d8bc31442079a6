"""A log is run again: what comes to the same is told from what does not, and a file's history is found."""

from pathlib import Path

import pytest

from benthic.sandbox import LocalHost
from benthic.sandbox.errors import TrajectoryCorrupt
from benthic.sandbox.host import Answer, Request
from benthic.sandbox.trajectory import BlobStore, Trajectory, blame, verify
from benthic.sandbox.trajectory.compare import compare, normalised
from benthic.sandbox.trajectory.frames import CHAIN_START, encode
from tests.sandbox.bare_host import made, needs_unshare, scene


def printed(text: str) -> Answer:
    return Answer(value={"returncode": 0, "num_stdout_bytes": len(text)}, data=text.encode())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("done at 12:34:56", "done at 09:01:02"),
        ("ran 3 tests in 0.12s", "ran 3 tests in 1.5s"),
        ("<object at 0x7f3a5c1d2e80>", "<object at 0x7fffdeadbee0>"),
        ("in /tmp/tmpa1b2c3d4/x", "in /tmp/tmpzz99yy88/x"),
        ("Mon Nov 30 16:05:11 UTC 2026", "Tue Dec  1 08:00:00 UTC 2026"),
        ("real\t0m0.004s", "real\t0m1.404s"),
        ("pid 4242 started", "pid 17 started"),
    ],
)
def test_what_no_two_runs_share_is_alike_and_not_exact(before: str, after: str) -> None:
    request = Request(verb="exec")
    assert compare(request, printed(before), printed(after)).sameness == "alike"
    assert compare(request, printed(before), printed(after), ()).sameness == "different"
    assert compare(request, printed(before), printed(before)).sameness == "exact"


@pytest.mark.parametrize(
    ("before", "after"), [("3 passed", "2 passed"), ("x = 1", "x = 2"), ("a\nb", "a\nc"), ("", "a")]
)
def test_what_matters_is_different(before: str, after: str) -> None:
    found = compare(Request(verb="exec"), printed(before), printed(after))
    assert found.sameness == "different" and "stdout differs from line" in found.detail
    assert normalised(before.encode()) == before.encode()


def test_another_code_reason_or_error_is_different() -> None:
    exec_ = Request(verb="exec")
    base = printed("x")
    for value in ({"returncode": 1}, {"reason": "timeout"}, {"dropped_stdout_bytes": 5}):
        other = Answer(value=base.value | value, data=base.data)
        assert compare(exec_, base, other).sameness == "different"
    assert compare(exec_, base, Answer(error="SandboxDied")).detail == "error was None, and is SandboxDied"


def test_times_of_files_do_not_count_and_their_content_does() -> None:
    stat = {"path": "/f", "type": "file", "size_bytes": 3, "mode": 420, "modified_s": 1.0}
    request = Request(verb="stat")
    assert compare(request, Answer(value=stat), Answer(value=stat | {"modified_s": 2.0})).sameness == "exact"
    assert compare(request, Answer(value=stat), Answer(value=stat | {"mode": 493})).sameness == "different"


@needs_unshare
def test_a_log_runs_again_exactly_and_a_changed_one_says_where(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        sandbox = await made(host)
        await sandbox.exec("for i in 1 2 3; do echo $i >> f; done; cat f")
        await sandbox.write(f"{sandbox.spec.cwd}/g", b"content")
        await sandbox.snapshot()
        process = await sandbox.spawn("read x; echo got $x", keeps_input=True)
        await process.feed("this\n")
        assert (await process.wait()).text == "got this\n"
        await sandbox.read(f"{sandbox.spec.cwd}/g")
        assert (await sandbox.exec("cat nothing; date +%H:%M:%S; exit 3")).returncode == 3
        report = await verify(host, host.trajectory(sandbox.id))
        assert report.first_difference is None
        assert [step.verb for step in report.steps] == ["exec", "write", "spawn", "feed", "exit", "read", "exec"]
        await sandbox.exec("head -c 6 /dev/urandom | od -x")
        steps: list[int] = []
        report = await verify(host, host.trajectory(sandbox.id), observe=lambda step: steps.append(step.seq))
        assert report.first_difference is not None and report.first_difference.seq == 7
        assert steps[-1] == 7 and not report.is_exact

    scene(tmp_path, play)


@needs_unshare
def test_the_calls_that_changed_a_file_are_found(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        sandbox = await made(host)
        path = f"{sandbox.spec.cwd}/f"
        await sandbox.exec("echo nothing here")
        await sandbox.exec("echo 1 > f")
        await sandbox.exec("echo 2 > other")
        await sandbox.write(path, b"new")
        await sandbox.exec("touch f")  # no change
        await sandbox.exec("chmod 600 f")
        await sandbox.remove(path)
        changes = await blame(host, host.trajectory(sandbox.id), path)
        found = [(change.seq, change.verb, change.what) for change in changes]
        assert found == [(1, "exec", "made"), (3, "write", "changed"), (5, "exec", "changed"), (6, "remove", "removed")]

    scene(tmp_path, play)


def test_a_log_of_another_format_is_refused_and_one_without_a_head_too(tmp_path: Path) -> None:

    for text in (
        b'{"type":"head","at":0,"format":99}',
        b'{"type":"begin","at":0,"seq":0,"verb":"exec","hash":"x"}',
        b"",
    ):
        path = tmp_path / "log"
        path.write_bytes(encode(text, b"", start=0, synced=0, chain=CHAIN_START)[0] if text else b"")
        with pytest.raises(TrajectoryCorrupt):
            Trajectory.read(path, BlobStore(tmp_path))
