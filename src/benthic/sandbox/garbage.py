"""What no sandbox and no trajectory needs any more: snapshots, and large values of logs; found by reading all logs.

A trajectory needs, for as long as it is kept: the snapshot that its sandbox started from, and those that somebody asked
for, since their references may be anywhere. While its sandbox lives or can be made again it also needs the newest one,
from which it would be. Automatic snapshots and those of forks need nothing else: a branch that finds them gone starts
from an earlier one and runs more calls.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from benthic.sandbox.errors import TrajectoryCorrupt
from benthic.sandbox.folders import Folders, SandboxRecord
from benthic.sandbox.images.collect import Collected, collect
from benthic.sandbox.images.store import SNAPSHOT, Store
from benthic.sandbox.records import Reason, SnapshotRef, State
from benthic.sandbox.trajectory import BlobStore, Trajectory
from benthic.sandbox.wire import decode

GRACE_S = 600.0
"""What is younger may be about to be named by a log."""
REBUILT = (Reason.CRASHED, Reason.HOST_LOST)
"""What a sandbox may have died of to be made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """What went, or would go."""

    trajectories: tuple[str, ...]
    blob_bytes: int
    store: Collected
    doubts: tuple[str, ...] = ()
    """Why something was kept that may be needed by nobody."""

    @property
    def freed_bytes(self) -> int:
        """Of the disk, but for trajectories."""
        return self.blob_bytes + self.store.size_bytes + self.store.derived_bytes


@dataclass(slots=True)
class Needs:
    """What all logs together need."""

    snapshots: set[tuple[str, ...]] = field(default_factory=set)
    """By their layers."""
    blobs: set[str] = field(default_factory=set)
    unread: dict[str, str] = field(default_factory=dict)
    """Damaged logs, by their sandboxes, and what is wrong."""


def clear_garbage(
    folders: Folders,
    store: Store,
    *,
    grace_s: float = GRACE_S,
    keep_logs_s: float | None = None,
    is_dry: bool = False,
) -> Garbage:
    """Removes it; sandboxes may come, go and run meanwhile. Blocks for as long as it takes to read all logs.

    Args:
        keep_logs_s: trajectories of sandboxes that ended longer ago are removed too; None keeps all.
        is_dry: finds out what would go, and changes nothing.
    """
    now_s = time.time()
    old = [] if keep_logs_s is None else _ended_before(folders, now_s - keep_logs_s)
    gone = tuple(record.id for record in old if is_dry or _remove(folders, record))
    # Listed before the logs are read: what is made meanwhile is not looked at.
    held = {owner: store.held(owner) for owner in store.owners() if owner.startswith(SNAPSHOT)}
    needs = needs_of(folders, without=gone)

    def is_done_with(owner: str) -> bool:
        is_known = owner in held and held[owner] == store.held(owner)
        return is_known and held[owner] not in needs.snapshots and not _is_spared(owner, store, needs, now_s - grace_s)

    collected = collect(store, is_done_with=is_done_with, is_dry=is_dry)
    blob_bytes = 0
    if not needs.unread:
        blobs = BlobStore(folders.blobs)
        blob_bytes = blobs.keep_only(needs.blobs, older_than_s=now_s - grace_s, is_dry=is_dry)
    doubts = [
        f"sandbox {id_}: its log cannot be read ({what}); all blobs are kept" for id_, what in needs.unread.items()
    ]
    return Garbage(trajectories=gone, blob_bytes=blob_bytes, store=collected, doubts=tuple(doubts))


def needs_of(folders: Folders, *, without: Collection[str] = ()) -> Needs:
    """What the logs of a state root need, but for those of some sandboxes."""
    needs = Needs()
    blobs = BlobStore(folders.blobs)
    for sandbox_id in folders.ids():
        record = None if sandbox_id in without else folders.load(sandbox_id)
        if record is None:
            continue
        if record.snapshot is not None:
            needs.snapshots.add(record.snapshot.layers)
        try:
            log = Trajectory.read(folders.log(sandbox_id), blobs)
            needs.snapshots |= _snapshots(log, record)
            needs.blobs |= log.blob_digests()
        except FileNotFoundError:
            continue  # removed meanwhile
        except TrajectoryCorrupt as error:
            needs.unread[sandbox_id] = str(error)
    return needs


def _snapshots(log: Trajectory, record: SandboxRecord) -> set[tuple[str, ...]]:
    notes = log.notes("snapshot")
    refs = [decode(SnapshotRef, note["ref"]) for note in notes if note.get("is_asked", True)]
    if notes and (record.state is not State.DEAD or record.reason in REBUILT):
        refs.append(max((decode(SnapshotRef, note["ref"]) for note in notes), key=lambda ref: ref.seq))
    return {ref.layers for ref in refs}


def _is_spared(owner: str, store: Store, needs: Needs, older_than_s: float) -> bool:
    """Whether it is too young to judge, or may be named by a log that cannot be read."""
    name = owner.removeprefix(SNAPSHOT)
    return store.held_since_s(owner) >= older_than_s or any(name.startswith(id_) for id_ in needs.unread)


def _ended_before(folders: Folders, limit_s: float) -> list[SandboxRecord]:
    found = []
    for sandbox_id in folders.ids():
        record = folders.load(sandbox_id)
        # The record is written for the last time when the sandbox ends.
        if record is not None and record.state is State.DEAD and folders.saved_s(sandbox_id) < limit_s:
            found.append(record)
    return found


def _remove(folders: Folders, record: SandboxRecord) -> bool:
    """Removes a trajectory for good, unless somebody has taken it up; the record first, so that half is none."""
    path = folders.log(record.id)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folders.load(record.id) != record:
            return False
        folders.forget(record)
        shutil.rmtree(path.parent)
    except (BlockingIOError, FileNotFoundError):
        return False
    finally:
        os.close(handle)
    return True


def mib(num_bytes: int) -> str:
    """For people."""
    return f"{num_bytes / (1 << 20):.1f} MiB"


def lines(garbage: Garbage) -> list[str]:
    """What went, for people; empty if it was nothing."""
    store = garbage.store
    said = [f"trajectory {sandbox_id}" for sandbox_id in garbage.trajectories]
    said += [owner.replace("-", " ", 1) for owner in store.released]
    if store.num_layers:
        said.append(f"{store.num_layers} layers of {mib(store.size_bytes)}")
    if store.num_derived:
        said.append(f"{store.num_derived} disks and templates of {mib(store.derived_bytes)}")
    if garbage.blob_bytes:
        said.append(f"values of logs, {mib(garbage.blob_bytes)}")
    return said
