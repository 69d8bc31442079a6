"""What nothing needs goes, and what a sandbox or a log needs stays: snapshots, their layers, and values of logs."""

import asyncio
import io
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benthic.sandbox.folders import Folders, SandboxRecord
from benthic.sandbox.garbage import Garbage, clear_garbage, lines
from benthic.sandbox.host import Answer, Request
from benthic.sandbox.images import Store
from benthic.sandbox.images.entry import Entry
from benthic.sandbox.rebuilding import origin
from benthic.sandbox.records import Reason, SandboxSpec, SnapshotRef, State
from benthic.sandbox.trajectory import BlobStore, Head, Trajectory, TrajectoryLog
from benthic.sandbox.wire import encode

LARGE = 1 << 19
"""Bytes of a call's data, which make it a blob of its own."""


class Place:
    """A state root, filled by hand."""

    def __init__(self, root: Path) -> None:
        self.folders = Folders(root)
        self.folders.create()
        self.store = Store(self.folders.store, format="folder")
        self.blobs = BlobStore(self.folders.blobs)
        self.count = 0

    def snapshot(self, name: str, seq: int) -> SnapshotRef:
        self.count += 1
        content = f"{name} {self.count}".encode()
        entry = Entry(path="f", type="file", mode=0o644, size=len(content))
        with self.store.adding():
            layer = self.store.add_layer(
                lambda writer: writer.file(entry, io.BytesIO(content)), kind="snapshot", source="a test"
            )
            self.store.hold(f"snapshot-{name}", [layer.digest])
        return SnapshotRef(id=name, kind="container", seq=seq, layers=(layer.digest,))

    def sandbox(self, **facts: object) -> SandboxRecord:
        with self.folders.making():
            record = SandboxRecord(id=self.folders.new_id(), spec=SandboxSpec(kind="container"), driver="crun")
            record = replace(record, state=State.RUNNING, **facts)  # type: ignore[arg-type]
            self.log(record, [], is_new=True)
            self.folders.save(record)
        return record

    def log(self, record: SandboxRecord, notes: list[tuple[SnapshotRef, bool]], *, is_new: bool = False) -> None:
        async def write() -> None:
            path = self.folders.log(record.id)
            if is_new:
                snapshot = encode(record.snapshot) if record.snapshot else None
                log = await TrajectoryLog.create(path, self.blobs, Head(sandbox_id=record.id, snapshot=snapshot))
                await log.begin(0, Request(verb="write", data=os.urandom(LARGE)))
                await log.end(0, Answer())
            else:
                log = await TrajectoryLog.open(path, self.blobs)
            for ref, is_asked in notes:
                await log.note("snapshot", ref=encode(ref), is_asked=is_asked)
            await log.close()

        asyncio.run(write())

    def end(self, record: SandboxRecord, reason: Reason) -> None:
        self.folders.save(replace(record, state=State.DEAD, reason=reason))

    def clear(self, **options: object) -> Garbage:
        return clear_garbage(self.folders, self.store, **{"grace_s": -1.0, **options})  # type: ignore[arg-type]

    def kept(self) -> set[str]:
        return {owner.removeprefix("snapshot-") for owner in self.store.owners()}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(
    ("reason", "stays"),
    [
        (None, {"asked", "auto-9"}),
        (Reason.CRASHED, {"asked", "auto-9"}),
        (Reason.HOST_LOST, {"asked", "auto-9"}),
        (Reason.CLOSED, {"asked"}),
        (Reason.EXPIRED, {"asked"}),
    ],
)
def test_of_automatic_snapshots_only_the_newest_stays_and_only_while_its_sandbox_can_go_on(
    place: Place, reason: Reason | None, stays: set[str]
) -> None:
    record = place.sandbox()
    autos = [(place.snapshot(f"auto-{seq}", seq), False) for seq in (3, 6, 9)]
    place.log(record, [*autos, (place.snapshot("asked", 1), True)])
    if reason is not None:
        place.end(record, reason)
    place.clear()
    assert place.kept() == stays
    for name, layers in ((owner, place.store.held(owner)) for owner in place.store.owners()):
        assert all(map(place.store.has_layer, layers)), name
    assert len(place.store.layers()) == len(stays)


def test_a_fork_keeps_the_snapshot_that_it_started_from_when_its_parent_is_gone(place: Place) -> None:
    parent = place.sandbox()
    ref = place.snapshot("fork", 0)
    place.log(parent, [(ref, False)])
    child = place.sandbox(snapshot=ref)
    place.end(parent, Reason.CLOSED)
    place.clear(keep_logs_s=-1)
    assert place.kept() == {"fork"} and list(place.folders.ids()) == [child.id]
    place.end(child, Reason.CLOSED)
    place.clear()
    assert place.kept() == {"fork"}, "its log can still be run again"
    place.clear(keep_logs_s=-1)
    assert place.kept() == set() and place.store.layers() == [] and list(place.folders.ids()) == []


def test_a_dry_run_says_what_would_go_with_sizes_and_changes_nothing(place: Place) -> None:
    record = place.sandbox()
    place.log(record, [(place.snapshot("auto", 0), False)])
    place.end(record, Reason.CLOSED)
    dry = place.clear(keep_logs_s=-1, is_dry=True)
    assert (
        place.kept() == {"auto"} and list(place.folders.ids()) == [record.id] and len(list(place.blobs.digests())) == 1
    )
    assert lines(dry) == [
        f"trajectory {record.id}",
        "snapshot auto",
        "1 layers of 0.0 MiB",
        "values of logs, 0.5 MiB",
    ]
    assert place.clear(keep_logs_s=-1) == dry
    assert lines(place.clear(keep_logs_s=-1)) == []


def test_values_stay_while_a_log_names_them(place: Place) -> None:
    kept, gone = place.sandbox(), place.sandbox()
    place.end(gone, Reason.CLOSED)
    place.blobs.put(b"of a call that was never written down")
    place.clear(keep_logs_s=-1)
    log = Trajectory.read(place.folders.log(kept.id), place.blobs)
    assert set(place.blobs.digests()) == log.blob_digests() and len(log.blob_digests()) == 1


def test_what_is_young_and_what_a_damaged_log_may_name_stays(place: Place) -> None:
    place.snapshot("young", 0)
    place.clear(grace_s=60)
    assert place.kept() == {"young"}
    record = place.sandbox()
    place.snapshot(f"{record.id}-auto-0", 0)
    path = place.folders.log(record.id)
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    garbage = place.clear()
    assert place.kept() == {f"{record.id}-auto-0"} and len(list(place.blobs.digests())) == 1
    assert record.id in garbage.doubts[0]


def test_a_trajectory_that_somebody_has_taken_up_again_is_not_removed(place: Place) -> None:
    record = place.sandbox()
    place.end(record, Reason.CRASHED)

    async def taken_up() -> None:
        log = await TrajectoryLog.open(place.folders.log(record.id), place.blobs)
        assert place.clear(keep_logs_s=-1).trajectories == ()
        await log.close()

    asyncio.run(taken_up())
    assert place.clear(keep_logs_s=-1).trajectories == (record.id,)


def test_a_rebuild_starts_from_an_older_snapshot_where_the_newest_is_gone(place: Place) -> None:
    record = place.sandbox()
    refs = [place.snapshot(f"auto-{seq}", seq) for seq in (0, 1)]
    place.log(record, [(ref, False) for ref in refs])
    log = Trajectory.read(place.folders.log(record.id), place.blobs)
    assert origin(log, 5, lambda ref: True).snapshot == refs[1]
    assert origin(log, 5, lambda ref: ref.id != "auto-1").snapshot == refs[0]
    assert origin(log, 5, lambda ref: False).snapshot is None


def test_collecting_beside_creates_takes_nothing_that_they_start_from(place: Place) -> None:
    """Sandboxes are snapshotted, forked and closed while garbage is cleared again and again."""
    stop, failures, rounds = threading.Event(), [], 0

    def collect() -> None:
        nonlocal rounds
        while not stop.is_set():
            try:
                place.clear(grace_s=1.0, keep_logs_s=-1)
                rounds += 1
            except Exception as error:  # noqa: BLE001 - shown below
                failures.append(error)
            time.sleep(0.02)  # else nobody else gets the store's lock

    def forked(index: int) -> None:
        owner = f"container-{index}"
        parent = place.sandbox()
        ref = place.snapshot(f"fork-{index}", 0)
        place.log(parent, [(ref, False)])
        child = place.sandbox(snapshot=ref)
        place.end(parent, Reason.CLOSED)
        time.sleep(0.001 * (index % 5))
        try:
            (tree,) = place.store.mount(owner, ref.layers)
            assert (tree / "f").exists()
        finally:
            place.store.release(owner)
        place.end(child, Reason.CLOSED)

    collector = threading.Thread(target=collect)
    collector.start()
    until = time.monotonic() + 3.0
    index = 0
    while time.monotonic() < until:
        forked(index)
        index += 1
    stop.set()
    collector.join()
    assert failures == [] and rounds > 3 and index > 3
    time.sleep(1.1)
    place.clear(grace_s=1.0, keep_logs_s=-1)
    assert place.kept() == set() and place.store.layers() == []
