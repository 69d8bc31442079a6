"""Large values of trajectories, each in a file named after its content; the same value is kept once.

A blob is on disk before a record names it, so a log never points to nothing.
"""

import hashlib
import os
import secrets
from collections.abc import Iterator, Set
from pathlib import Path

from benthic.sandbox.errors import TrajectoryCorrupt
from benthic.sandbox.trajectory.file import sync_folder


class BlobStore:
    """A folder of blobs, safe for any number of processes at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, data: bytes) -> str:
        """Keeps a value; returns its digest, 64 hex digits."""
        digest = hashlib.blake2b(data, digest_size=32).hexdigest()
        path = self._path(digest)
        try:
            os.utime(path)  # young again: `keep_only` leaves it
            return digest
        except FileNotFoundError:
            pass
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{digest}.{secrets.token_hex(4)}")
        try:
            with open(fresh, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(fresh, path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
        sync_folder(self.folder)
        return digest

    def get(self, digest: str) -> bytes:
        """A value.

        Raises:
            TrajectoryCorrupt: it is missing, or is not what was kept.
        """
        path = self._path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise TrajectoryCorrupt(f"{path} is missing though a trajectory names it; restore it") from None
        if hashlib.blake2b(data, digest_size=32).hexdigest() != digest:
            raise TrajectoryCorrupt(f"{path} holds {len(data)} bytes of another content than its name says; restore it")
        return data

    def digests(self) -> Iterator[str]:
        """Of all that is kept."""
        return (path.name for path in self.folder.glob("??/*") if not path.name.startswith("."))

    def keep_only(self, wanted: Set[str], *, older_than_s: float, is_dry: bool = False) -> int:
        """Removes every blob that is not wanted and was made before a Unix time; returns how many bytes went.

        Younger ones may be about to be named by a record. What a crash left half written counts as a blob.

        Args:
            is_dry: only counts.
        """
        freed = 0
        for path in [*self.folder.glob("??/*"), *self.folder.glob("??/.*")]:
            try:
                status = path.stat()
                if path.name not in wanted and status.st_mtime < older_than_s:
                    if not is_dry:
                        path.unlink()
                    freed += status.st_size
            except FileNotFoundError:
                continue  # another process was here first
        return freed

    def _path(self, digest: str) -> Path:
        assert len(digest) == 64 and digest.isalnum(), digest
        return self.folder / digest[:2] / digest
