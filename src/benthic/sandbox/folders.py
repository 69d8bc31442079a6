"""Where a host keeps what it knows of its sandboxes.

    <state root>/homes/<id>/            what its driver made: gone when the sandbox is closed
    <state root>/trajectories/<id>/     its log and `sandbox.json`: these stay
    <state root>/trajectories/blobs/    large values of all logs
    <state root>/keys/<digest of key>   a link to the id that was made for a create key
    <state root>/store/                 images, layers, snapshots

The trajectories may lie on a file system that several hosts share: then each of them can make a lost sandbox again.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benthic.errors import SandboxError, shown
from benthic.sandbox.records import Reason, SandboxSpec, SnapshotRef, State
from benthic.sandbox.trajectory.file import sync_folder
from benthic.sandbox.wire import decode, encode

_ID = re.compile(r"[0-9a-f]{12}")
_RECORD = "sandbox.json"


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

    @property
    def store(self) -> Path:
        """Images, layers, snapshots."""
        return self.root / "store"

    def home(self, sandbox_id: str) -> Path:
        """What its driver made."""
        return self.homes / _checked(sandbox_id)

    def log(self, sandbox_id: str) -> Path:
        """Its trajectory."""
        return self.trajectories / _checked(sandbox_id) / "log"

    @contextlib.contextmanager
    def making(self) -> Iterator[None]:
        """Around everything between a new id and its saved record and claimed key: what is so far half made stays."""
        with self._making(fcntl.LOCK_SH):
            yield

    def sweep(self) -> list[str]:
        """Removes what was half made when its maker died: trajectories without a record, and keys of those.

        Says what went; does nothing while anybody is making a sandbox.
        """
        if not self._half_made():
            return []
        try:
            with self._making(fcntl.LOCK_EX | fcntl.LOCK_NB):
                half_made = self._half_made()
                for path in half_made:
                    shutil.rmtree(path) if path.parent == self.trajectories else path.unlink()
        except BlockingIOError:
            return []
        return [f"beginning of a sandbox: {path}" for path in half_made]

    def _half_made(self) -> list[Path]:
        """Trajectories without a record, and keys of those; whole ones that are being made, too."""
        logs = [self.trajectories / sandbox_id for sandbox_id in self.ids()]
        without = [log for log in logs if not (log / _RECORD).exists()]
        lost = {log.name for log in without}
        keys = [(key, _owner(key)) for key in self.keys.iterdir()]
        return without + [key for key, owner in keys if owner in lost or not (self.trajectories / owner).exists()]

    @contextlib.contextmanager
    def _making(self, how: int) -> Iterator[None]:
        handle = os.open(self.trajectories / "making.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, how)
            yield
        finally:
            os.close(handle)

    def new_id(self) -> str:
        """An id with a trajectory folder of its own, 12 hex digits. Call it while `making`."""
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
            text = (self.trajectories / _checked(sandbox_id) / _RECORD).read_bytes()
        except FileNotFoundError:
            return None
        return decode(SandboxRecord, json.loads(text))

    def save(self, record: SandboxRecord) -> None:
        """Durably; a reader sees the old or the new one."""
        write_whole(self.trajectories / record.id / _RECORD, json.dumps(encode(record), indent=1).encode())

    def saved_s(self, sandbox_id: str) -> float:
        """When its record was written last, as Unix time."""
        return (self.trajectories / _checked(sandbox_id) / _RECORD).stat().st_mtime

    def forget(self, record: SandboxRecord) -> None:
        """As if it had never been; its trajectory is to be removed next."""
        (self.trajectories / record.id / _RECORD).unlink()
        if record.key is not None:
            self.release_key(record.key, record.id)

    def key_owner(self, key: str) -> str | None:
        """The id that was made for a key."""
        try:
            return _owner(self._key(key))
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
        try:
            os.symlink(sandbox_id, path)  # whole at once, or not at all
        except FileExistsError:
            return _owner(path)
        sync_folder(self.keys)
        return sandbox_id

    def release_key(self, key: str, sandbox_id: str) -> None:
        """Lets a key be used again."""
        if self.key_owner(key) == sandbox_id:
            self._key(key).unlink(missing_ok=True)

    def _key(self, key: str) -> Path:
        return self.keys / hashlib.sha256(key.encode()).hexdigest()[:32]


def write_whole(path: Path, content: bytes) -> None:
    """Replaces a file, durably; one writer at a time. What a crash leaves of a draft goes with the next one."""
    draft = path.with_name(f".{path.name}.new")
    with open(draft, "wb") as file:
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


def _owner(key: Path) -> str:
    """The id that a key leads to; state roots from before keys were links have it as a file's text."""
    return os.readlink(key) if key.is_symlink() else key.read_text()
