"""The writer's promises: order, one end for each call, one writer, and honesty about a disk that fails."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benthic.errors import RequestError
from benthic.sandbox.errors import TrajectoryCorrupt, TrajectoryHeld, TrajectoryUnwritable
from benthic.sandbox.host import Answer, Request
from benthic.sandbox.trajectory import Trajectory, request_hash
from benthic.sandbox.trajectory.entries import difference
from tests.sandbox.trajectory.written import blobs, command, new_log, opened, printed, run_commands


def test_calls_come_back_as_they_were_logged(tmp_path: Path) -> None:
    async def scene() -> None:
        log = await new_log(tmp_path)
        await log.begin(0, Request(verb="write", arguments={"path": "/work/\udcff"}, data=b"\0\xff" * 100))
        await log.end(0, Answer())
        await log.done(
            1, Request(verb="read", arguments={"path": "/x"}), Answer(error="PathError", value={"path": "x"})
        )
        await log.begin(2, Request(verb="spawn", arguments={"shell": "server"}))
        await log.end(2, Answer())
        await log.exited(2, printed(7))
        await log.begin(3, command(3))
        await log.close()
        log = await opened(tmp_path)
        write, read, spawn, open_call = log.entries()
        assert write.request.data == b"\0\xff" * 100
        assert write.request.arguments == {"path": "/work/\udcff"}
        assert write.request_hash == request_hash(write.request)
        assert read.answer is not None and read.answer.error == "PathError"
        assert read.answer.is_replayed and read.answer.seq == 1
        assert spawn.exit is not None and spawn.exit.data == b"7\n"
        assert open_call.answer is None and open_call.ended_s is None
        assert log.next_seq == 4
        await log.close()

    asyncio.run(scene())


def test_large_values_become_blobs_that_are_kept_once(tmp_path: Path) -> None:
    async def scene() -> None:
        log = await new_log(tmp_path)
        large = os.urandom(1 << 20)
        for seq in range(3):
            await log.begin(seq, Request(verb="write", arguments={"path": f"/{seq}"}, data=large))
            await log.end(seq, Answer(data=large))
        assert log.entry(2).request.data == large == log.entry(1).answer.data  # type: ignore[union-attr]
        assert len(list(blobs(tmp_path).digests())) == 1 == len(log.blob_digests())
        await log.close()
        assert log.path.stat().st_size < 10_000, "the room that was taken ahead is given back"

    asyncio.run(scene())


def test_a_page_has_the_answers_that_will_not_change_and_a_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        log = await new_log(tmp_path)
        await run_commands(log, 3)
        await log.done(3, Request(verb="read", arguments={"path": "/x"}), Answer(data=b"x" * (1 << 20)))
        await log.begin(4, Request(verb="spawn", arguments={"shell": "server"}))
        await log.end(4, Answer())
        await log.begin(5, command(5))
        await log.done(
            6, Request(verb="stat", arguments={"path": "/x"}), Answer(error="PathError", value={"path": "x"})
        )
        before = log.page(4)
        await log.exited(4, printed(7))
        page = log.page(0)
        assert [item.answer.seq for item in page] == [0, 1, 2, 4, 6], "large values and open calls are left out"
        assert all(item.answer.is_replayed for item in page)
        assert page[1].answer == log.answer(1) and page[1].request_hash == request_hash(command(1))
        assert (before[0].exit, page[3].exit) == (None, log.entry(4).exit)
        assert page[4].answer.error == "PathError"
        assert log.page(7) == log.page(1000) == []
        monkeypatch.setattr("benthic.sandbox.trajectory.reader.PAGE_CALLS", 2)
        assert [item.answer.seq for item in log.page(1)] == [1, 2]
        monkeypatch.setattr("benthic.sandbox.trajectory.reader.PAGE_BYTES", 150)
        assert [item.answer.seq for item in log.page(0)] == [0]
        await log.close()

    asyncio.run(scene())


def test_a_blob_that_is_missing_or_changed_is_reported(tmp_path: Path) -> None:
    async def scene() -> None:
        log = await new_log(tmp_path)
        await log.begin(0, Request(verb="write", data=b"x" * (1 << 20)))
        blob = next(iter((tmp_path / "blobs").glob("??/*")))
        blob.write_bytes(b"y" * (1 << 20))
        with pytest.raises(TrajectoryCorrupt, match="another content"):
            log.entry(0)
        blob.unlink()
        with pytest.raises(TrajectoryCorrupt, match="missing"):
            log.entry(0)
        await log.close()

    asyncio.run(scene())


def test_blobs_that_no_log_names_are_removed_unless_they_are_young(tmp_path: Path) -> None:
    store = blobs(tmp_path)
    kept, lost = store.put(b"kept"), store.put(b"lost")
    assert store.keep_only({kept}, older_than_s=0) == 0
    assert store.keep_only({kept}, older_than_s=4e9) == 4
    assert store.get(kept) == b"kept"
    with pytest.raises(TrajectoryCorrupt):
        store.get(lost)


def test_a_log_has_one_writer_and_any_number_of_readers(tmp_path: Path) -> None:
    async def scene() -> None:
        log = await new_log(tmp_path)
        await run_commands(log, 2)
        with pytest.raises(TrajectoryHeld, match="one writer"):
            await opened(tmp_path)
        assert Trajectory.read(log.path, blobs(tmp_path)).next_seq == 2
        await log.close()
        await (await opened(tmp_path)).close()

    asyncio.run(scene())


def test_a_log_is_made_once(tmp_path: Path) -> None:
    async def scene() -> None:
        log = await new_log(tmp_path)
        with pytest.raises(FileExistsError):
            await new_log(tmp_path)
        await log.close()

    asyncio.run(scene())


def test_calls_that_come_together_keep_their_order_whatever_their_size(tmp_path: Path) -> None:
    async def scene() -> None:
        log = await new_log(tmp_path)
        sizes = [1 << 20, 1, 1 << 19, 0, 10]
        requests = [Request(verb="write", arguments={"n": n}, data=b"x" * n) for n in sizes]
        await asyncio.gather(*(log.begin(seq, request) for seq, request in enumerate(requests)))
        assert [entry.request for entry in log.entries()] == requests
        await log.close()

    asyncio.run(scene())


def test_a_place_cannot_begin_before_the_one_before_it(tmp_path: Path) -> None:
    async def scene() -> None:
        log = await new_log(tmp_path)
        with pytest.raises(TrajectoryUnwritable, match="place 0 never did"):
            await log.begin(1, command(1))
        assert log.next_seq == 0
        await log.close()

    asyncio.run(scene())


def test_syncs_that_come_together_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        log = await new_log(tmp_path)
        await asyncio.gather(*(log.begin(seq, command(seq)) for seq in range(100)))
        await asyncio.gather(*(log.end(seq, printed(seq)) for seq in range(100)))
        await log.close()

    calls = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: (calls.append(descriptor), real(descriptor)))
    asyncio.run(scene())
    assert len(calls) < 20


def test_after_a_failed_sync_nothing_is_accepted_until_the_log_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    async def scene() -> None:
        log = await new_log(tmp_path)
        await run_commands(log, 3)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fails)
            with pytest.raises(TrajectoryUnwritable, match="while syncing"):
                await log.begin(3, command(3))
        with pytest.raises(TrajectoryUnwritable, match="open it again"):
            await log.begin(4, command(4))
        await log.close()
        log = await opened(tmp_path)
        await run_commands(log, 2)
        await log.close()

    asyncio.run(scene())


def test_a_caller_that_leaves_does_not_disturb_the_others(tmp_path: Path) -> None:
    async def scene() -> None:
        log = await new_log(tmp_path)
        calls = [asyncio.create_task(log.begin(seq, command(seq))) for seq in range(10)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert outcomes[1::2] == [None] * 5
        assert log.next_seq == 10
        await log.close()

    asyncio.run(scene())


FILL = """
import asyncio, resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from benthic.sandbox.errors import TrajectoryUnwritable
from benthic.sandbox.host import Answer
from tests.sandbox.trajectory.written import command, new_log, printed

async def scene():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    log = await new_log(Path(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
    seq = 0
    try:
        while True:
            await log.begin(seq, command(seq))
            await log.end(seq, Answer(data=b"x" * 300))
            seq += 1
    except TrajectoryUnwritable as error:
        assert "File too large" in str(error), error
    assert log._file.end == log.path.stat().st_size, "the refused record was not taken back"
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if log.next_seq == seq:
        await log.begin(seq, command(seq))
    await log.end(seq, printed(seq))
    await log.close()
    print(seq + 1)

asyncio.run(scene())
"""


def test_a_full_disk_refuses_a_record_whole_and_the_same_call_goes_on_later(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(tmp_path), str(root)],
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    log = Trajectory.read(tmp_path / "0123456789ab.log", blobs(tmp_path))
    assert log.next_seq == int(done.stdout)
    assert all(entry.answer is not None for entry in log.entries())


def test_a_checkpoint_holds_until_the_log_says_something_else(tmp_path: Path) -> None:
    async def scene() -> None:
        log = await new_log(tmp_path)
        start = log.checkpoint()
        assert start == ("0123456789ab", -1, "")
        await run_commands(log, 3)
        third = log.checkpoint()
        await log.begin(3, command(3))
        assert log.checkpoint() == third, "an open call is not part of a checkpoint"
        await log.end(3, printed(3))
        assert third.last_seq == 2 and log.has(third) and log.has(start)
        assert not log.has(third._replace(chain="00" * 16))
        assert not log.has(third._replace(last_seq=99))
        assert not log.has(third._replace(sandbox_id="ffffffffffff"))
        assert log.checkpoint(1) != third and log.has(log.checkpoint(1))
        await log.close()

    asyncio.run(scene())


def test_records_are_plain_json(tmp_path: Path) -> None:
    async def scene() -> None:
        log = await new_log(tmp_path)
        await run_commands(log, 1)
        await log.note("snapshot", id="s1")
        records = json.loads(json.dumps(log.records()))
        assert [record["type"] for record in records] == ["head", "begin", "end", "note"]
        assert records[2]["num_bytes"] == 2
        await log.close()

    asyncio.run(scene())


def test_hashes_tell_verb_arguments_and_data_apart_but_not_the_order_of_names() -> None:
    base = Request(verb="write", arguments={"path": "/a", "mode": 420}, data=b"x")
    assert request_hash(base) == request_hash(Request(verb="write", arguments={"mode": 420, "path": "/a"}, data=b"x"))
    others = [
        Request(verb="remove", arguments=base.arguments, data=b"x"),
        Request(verb="write", arguments={"path": "/b", "mode": 420}, data=b"x"),
        Request(verb="write", arguments=base.arguments, data=b"y"),
    ]
    assert len({request_hash(request) for request in [base, *others]}) == 4
    assert [difference(base, other) for other in others] == [
        "write mode=420 path='/a' was logged, and remove mode=420 path='/a' came",
        "path of write was '/a', and is '/b'",
        "the data of write was 1 other bytes, and is 1 bytes",
    ]


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"bytes", object()])
def test_arguments_that_are_no_json_are_refused(tmp_path: Path, value: object) -> None:
    async def scene() -> None:
        log = await new_log(tmp_path)
        with pytest.raises(RequestError, match="must be JSON"):
            await log.begin(0, Request(verb="exec", arguments={"x": value}))
        assert log.next_seq == 0
        await log.close()

    asyncio.run(scene())
