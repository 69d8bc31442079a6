"""A file that stays readable however its name fares: it is held open, so its bytes outlive renaming and removal."""

import os
from pathlib import Path

from benthic.errors import CheckpointError


class HeldFile:
    """An open file and a path under which other processes of this user can open the very same one (Linux).

    Nothing is copied and nothing is left behind when the holder dies. Writing into the file itself is still seen: what
    reads it again compares a checksum.

    Raises:
        CheckpointError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path[:200]!r} cannot be opened ({error}); give a readable file of weights"
            ) from None
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def close(self) -> None:
        """Lets go of it; once."""
        os.close(self._descriptor)


def is_file(path: str) -> bool:
    """Whether a path names a regular file; whatever cannot be a path names none."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def is_special(path: str) -> bool:
    """Whether a path names something that is neither a folder nor a regular file: a device, a pipe, a socket."""
    try:
        found = Path(path)
        return found.exists() and not found.is_file() and not found.is_dir()
    except (OSError, ValueError):
        return False
