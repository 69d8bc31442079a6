"""Snapshots of kinds whose root never changes: what lies in /work, as a layer, and such layers put into a new /work.

It is read and written from the host, through the root of the sandbox's first process. A sandbox that is read stands
still; one that is written to has run no command yet.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benthic.sandbox.images import Store
from benthic.sandbox.images.contents import Content, open_stack, write_contents
from benthic.sandbox.images.snapshot import KEEP_BITS
from benthic.sandbox.images.state import state_digest
from benthic.sandbox.images.store import SNAPSHOT
from benthic.sandbox.images.walk import Walk
from benthic.sandbox.images.writer import TreeWriter
from benthic.sandbox.linux import ProcessId
from benthic.sandbox.records import Kind, SnapshotRef

WORK = "work"
START_LIMIT_S = 20.0


def keep_work(store: Store, process: ProcessId, name: str, *, kind: Kind, id_base: int) -> SnapshotRef:
    """Keeps /work of a sandbox as `snapshot-<name>`: the whole of it, so that one layer is enough.

    Args:
        id_base: the host's id that is root inside.

    Raises:
        ImageError: it changes while it is read.
        OSError: the sandbox has ended.
    """
    walk = Walk(at=WORK, id_base=id_base)
    with store.adding(), _opened(process) as folder:
        layer = store.add_layer(
            lambda writer: walk.copy(folder, writer),
            kind="snapshot",
            source=f"process {process.pid}",
            policy=KEEP_BITS,
            is_compressed=False,
        )
        store.hold(f"{SNAPSHOT}{name}", (layer.digest,))
    layers = (layer.digest,)
    state = state_digest(store, layers)
    return SnapshotRef(id=name, kind=kind, seq=-1, layers=layers, size_bytes=layer.size_bytes, state=state)


def fill_work(store: Store, layers: Sequence[str], process: ProcessId, *, id_base: int) -> None:
    """Puts the /work of layers, lowest first, into that of a sandbox.

    Raises:
        OSError: its disk is full, or it has ended.
    """
    with _opened(process) as folder, open_stack(store, layers) as contents:
        writer = TreeWriter(folder, KEEP_BITS)
        write_contents(writer, (_moved(content) for content in contents if content.entry.path.startswith(f"{WORK}/")))
        for entry in writer.finish():
            os.lchown(folder / entry.path, id_base + entry.uid, id_base + entry.gid)


def layers_of_work(store: Store, digests: Sequence[str], snapshot: SnapshotRef | None) -> Sequence[str]:
    """The layers that a new /work is filled from: a snapshot's, or those that stand on an image's base."""
    if snapshot is not None:
        return snapshot.layers
    return [digest for digest in digests if store.layer(digest).kind != "base"]


def await_init(process: ProcessId) -> None:
    """Waits until a sandbox's first process is init: before, its root may still be the host's.

    Raises:
        OSError: it ended, or was not there in time.
    """
    deadline = time.monotonic() + START_LIMIT_S
    while Path(f"/proc/{process.pid}/comm").read_text() != "init\n":
        if time.monotonic() > deadline:
            raise TimeoutError("init did not begin in time")
        time.sleep(0.001)


@contextmanager
def _opened(process: ProcessId) -> Iterator[Path]:
    """The /work of a sandbox, whatever its first process does meanwhile."""
    root = os.open(f"/proc/{process.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not process.is_alive():
            raise OSError("its first process has ended")
        assert not os.path.samestat(os.fstat(root), os.stat("/")), "a sandbox's root is not the host's"
        yield Path(f"/proc/self/fd/{root}", WORK)
    finally:
        os.close(root)


def _moved(content: Content) -> Content:
    return replace(content, entry=replace(content.entry, path=content.entry.path.removeprefix(f"{WORK}/")))
