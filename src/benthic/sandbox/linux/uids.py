"""Host uids for sandboxes, so that no two share one and none is root.

A claim is a symbolic link to its owner's home folder, made before the uid is used. It appears whole or not at all, and
once: two processes can never claim the same range, no crash leaves half a claim, and one whose home is gone can be
swept. There is one folder a machine, whatever state roots lie on it, since uids are the machine's.
"""

import contextlib
import os
import random
from dataclasses import dataclass
from pathlib import Path

MACHINE_FOLDER = Path("/run/benthic/uids")
"""Emptied by a reboot, as the processes are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UidPool:
    """Ranges of host uids, each for one sandbox; gids have the same numbers."""

    folder: Path = MACHINE_FOLDER
    first: int = 0x7001_0000
    """Above what distributions hand to people, to services and to systemd's own containers."""
    size: int = 1 << 16
    """Uids of one range: the first is root inside, 1000 further is the ordinary user."""
    num_ranges: int = 0xFFE
    """All stays below 2**31, where some programs begin to see negative numbers."""

    def __post_init__(self) -> None:
        assert self.first > 0 and self.first + self.size * self.num_ranges < 1 << 31

    def acquire(self, home: Path) -> int:
        """Claims a range for a sandbox and returns its first uid.

        Raises:
            LookupError: all are claimed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        owner = str(home.resolve())
        start = random.randrange(self.num_ranges)
        for step in range(self.num_ranges):
            uid = self.first + (start + step) % self.num_ranges * self.size
            if self._claim(uid, owner):
                return uid
        raise LookupError(f"all {self.num_ranges} ranges of host uids are claimed in {self.folder}")

    def release(self, home: Path, uid: int | None = None) -> None:
        """Gives back what a sandbox has claimed, once no process has its uids and no file belongs to them.

        Args:
            uid: the first of its range, if known: else all claims are looked through. What another sandbox has
                claimed by now stays.
        """
        owner = home.resolve()
        for claimed in [uid] if uid is not None else self.owners():
            with contextlib.suppress(OSError):
                if self._owner(claimed) == owner:
                    self._file(claimed).unlink()

    def move(self, uid: int, home: Path, target: Path) -> None:
        """Passes a claim on to another home, whose the sandbox is from now on; nobody else can claim it in between.

        Raises:
            LookupError: it is not that home's.
        """
        if self.owners().get(uid) != home.resolve():
            raise LookupError(f"host uid {uid} is not claimed for {home}")
        draft = self.folder / f".{uid}"
        draft.unlink(missing_ok=True)  # of one who died right here
        draft.symlink_to(target.resolve())
        draft.replace(self._file(uid))

    def owners(self) -> dict[int, Path]:
        """First uid of each claimed range -> the home it was claimed for."""
        owners = {}
        for name in os.listdir(self.folder) if self.folder.is_dir() else ():
            with contextlib.suppress(OSError, ValueError):  # released meanwhile, or none of ours
                if self._covers(int(name)):
                    owners[int(name)] = self._owner(int(name))
        return owners

    def sweep(self, state_root: Path) -> list[int]:
        """Releases claims of homes below a state root that no longer exist; their first uids."""
        root = state_root.resolve()
        stale = {uid: home for uid, home in self.owners().items() if root in home.parents and not home.is_dir()}
        for uid, home in stale.items():
            self.release(home, uid)
        return list(stale)

    def _covers(self, uid: int) -> bool:
        index, rest = divmod(uid - self.first, self.size)
        return rest == 0 and 0 <= index < self.num_ranges

    def _file(self, uid: int) -> Path:
        assert self._covers(uid), f"{uid} begins no range of this pool"
        return self.folder / str(uid)

    def _owner(self, uid: int) -> Path:
        return Path(os.readlink(self._file(uid)))

    def _claim(self, uid: int, owner: str) -> bool:
        try:
            os.symlink(owner, self._file(uid))
        except FileExistsError:
            return False
        return True
