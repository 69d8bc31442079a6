"""Where a host keeps what it knows of its sandboxes.

    <state root>/homes/<id>/            what its driver made: gone when the sandbox is closed
    <state root>/trajectories/<id>/     its log and `sandbox.json`: these stay
    <state root>/trajectories/blobs/    large values of all logs
    <state root>/keys/<digest of key>   the id that was made for a create key
    <state root>/store/                 images, layers, snapshots

The trajectories may lie on a file system that several hosts share: then each of them can make a lost sandbox again.
"""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benthic.errors import SandboxError, shown
from benthic.sandbox.records import Reason, SandboxSpec, SnapshotRef, State
from benthic.sandbox.trajectory.file import sync_folder
from benthic.sandbox.wire import decode, encode

_ID = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRecord:
    """What is known of one sandbox across restarts of its host: `sandbox.json`."""

    id: str
    spec: SandboxSpec
    driver: str
    key: str | None = None
    state: State = State.STARTING
    reason: Reason | None = None
    detail: str = ""
    created_s: float = 0.0
    start_s: dict[str, Any] = field(default_factory=dict)
    """Seconds of each stage."""
    boot_id: str = ""
    """Of the kernel under it: another one means that the machine went down."""
    snapshot: SnapshotRef | None = None
    lived_s: float = 0.0
    paused_s: float | None = None
    """When it was paused."""
    is_lapsed: bool = False
    """It was paused since its lease ran out, and goes on with the next call."""


class Folders:
    """The folders of one state root."""

    def __init__(self, root: Path, trajectories: Path | None = None) -> None:
        """`trajectories` may lie elsewhere."""
        self.root = root
        self.homes = root / "homes"
        self.trajectories = trajectories or root / "trajectories"
        self.keys = root / "keys"

    @property
    def is_shared(self) -> bool:
        """Whether the trajectories lie elsewhere, where other hosts may have theirs too."""
        return self.trajectories != self.root / "trajectories"

    def create(self) -> None:
        """Makes what is missing. Only the owner may look inside."""
        for folder in (self.root, self.homes, self.trajectories, self.blobs, self.keys):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def blobs(self) -> Path:
        """Large values of logs."""
        return self.trajectories / "blobs"

    def home(self, sandbox_id: str) -> Path:
        """What its driver made."""
        return self.homes / _checked(sandbox_id)

    def log(self, sandbox_id: str) -> Path:
        """Its trajectory."""
        return self.trajectories / _checked(sandbox_id) / "log"

    def new_id(self) -> str:
        """An id with a trajectory folder of its own, 12 hex digits."""
        while True:
            sandbox_id = secrets.token_hex(6)
            try:
                (self.trajectories / sandbox_id).mkdir(mode=0o700)
            except FileExistsError:
                continue
            return sandbox_id

    def ids(self) -> Iterator[str]:
        """Of all sandboxes that ever were, but those whose trajectories were removed."""
        return (path.name for path in sorted(self.trajectories.iterdir()) if _ID.fullmatch(path.name))

    def load(self, sandbox_id: str) -> SandboxRecord | None:
        """What is known of a sandbox; None if it was never heard of."""
        try:
            text = (self.trajectories / _checked(sandbox_id) / "sandbox.json").read_bytes()
        except FileNotFoundError:
            return None
        return decode(SandboxRecord, json.loads(text))

    def save(self, record: SandboxRecord) -> None:
        """Durably; a reader sees the old or the new one."""
        write_whole(self.trajectories / record.id / "sandbox.json", json.dumps(encode(record), indent=1).encode())

    def key_owner(self, key: str) -> str | None:
        """The id that was made for a key."""
        try:
            return self._key(key).read_text()
        except FileNotFoundError:
            return None

    def claim_key(self, key: str, sandbox_id: str, *, instead_of: str | None = None) -> str:
        """Gives a key to a sandbox unless another has it; returns whose it is.

        Args:
            instead_of: an earlier owner that never came up and may be replaced.
        """
        path = self._key(key)
        if instead_of is not None and self.key_owner(key) == instead_of:
            path.unlink(missing_ok=True)
        draft = path.with_name(f".{sandbox_id}")
        draft.write_text(sandbox_id)
        try:
            os.link(draft, path)  # whole at once, or not at all
            sync_folder(self.keys)
        except FileExistsError:
            return path.read_text()
        finally:
            draft.unlink()
        return sandbox_id

    def release_key(self, key: str, sandbox_id: str) -> None:
        """Lets a key be used again."""
        if self.key_owner(key) == sandbox_id:
            self._key(key).unlink(missing_ok=True)

    def _key(self, key: str) -> Path:
        return self.keys / hashlib.sha256(key.encode()).hexdigest()[:32]


def write_whole(path: Path, content: bytes) -> None:
    """Replaces a file, durably."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with open(draft, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(draft, path)
    sync_folder(path.parent)


def kernel_boot_id() -> str:
    """Changes whenever the machine starts."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _checked(sandbox_id: str) -> str:
    """An id comes from outside: as a part of a path it must be nothing else."""
    if not _ID.fullmatch(sandbox_id):
        raise SandboxError(f"a sandbox id is 12 hex digits, and not {shown(sandbox_id)}")
    return sandbox_id
