"""Snapshots of virtual machines in the store: a record of the machine that they fit, and their files.

The record is the first blob. It names the others, so that a snapshot of another machine is told from one of this.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from benthic.errors import shown
from benthic.sandbox.errors import StartFailed
from benthic.sandbox.images import Store
from benthic.sandbox.images.store import SNAPSHOT
from benthic.sandbox.records import Kind, SnapshotRef


def keep_snapshot(
    store: Store, kind: Kind, name: str, files: Sequence[Path], shape: dict[str, Any], source: str
) -> SnapshotRef:
    """Moves a snapshot's files into the store, held under its name.

    Args:
        files: all in one folder, to which the record is added; each is known by its name.
        shape: what a machine must have in common with the one that the snapshot is of.
        source: where it comes from, for people.
    """
    digests = {file: _digest(file) for file in files}
    record = files[0].parent / "record"
    record.write_text(json.dumps(shape | {file.name: digest for file, digest in digests.items()}, sort_keys=True))
    digests = {record: _digest(record), **digests}
    with store.adding():
        blobs = [store.add_blob(path, digest, source=source) for path, digest in digests.items()]
        store.hold(f"{SNAPSHOT}{name}", [blob.digest for blob in blobs])
    return SnapshotRef(
        id=uuid4().hex[:12],
        kind=kind,
        seq=-1,
        layers=tuple(blob.digest for blob in blobs),
        size_bytes=sum(blob.size_bytes for blob in blobs),
    )


def read_snapshot(store: Store, snapshot: SnapshotRef, shape: dict[str, Any], names: Sequence[str]) -> list[Path]:
    """The files of a snapshot, by their names, for a machine of the same shape.

    Raises:
        StartFailed: it is of another one.
    """
    kept = json.loads(store.blob(snapshot.layers[0]).read_bytes())
    for name, value in shape.items():
        if kept.get(name) != value:
            raise StartFailed(
                f"snapshot {snapshot.id} is of a machine with {name} {shown(kept.get(name))} and fits no other, "
                f"and {shown(value)} is asked for; start it with the spec of the sandbox that it was made of",
                stage="snapshot",
            )
    return [store.blob(kept[name]) for name in names]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
