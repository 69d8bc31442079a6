"""Who uses which layers, on disk, so that a count survives the death of whoever took part in it.

A holder is a name: a sandbox's id, a snapshot, a running import. `owners/<name>` lists its layers and is written first;
`held/<64 digits>/<name>` marks each, so that counting a layer's holders reads one folder. What a crash leaves between
the two is a marker without an owner, which counts for nothing.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from benthic.errors import shown
from benthic.sandbox.errors import ImageError
from benthic.sandbox.images.layer import sync

DRAFT = ".draft"
"""Of an owner's list; one is enough, since only one at a time holds the lock."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Holders:
    """The folder that keeps count. Callers take the store's lock."""

    def __init__(self, root: Path) -> None:
        self._owners, self._held = root / "owners", root / "held"
        for folder in (self._owners, self._held):
            folder.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """Everybody who holds something."""
        return sorted(path.name for path in self._owners.iterdir() if not path.name.startswith("."))

    def layers(self, owner: str) -> tuple[str, ...]:
        """The digests that one holds, in the order in which they were taken."""
        try:
            return tuple(json.loads(self._owner(owner).read_text()))
        except FileNotFoundError:
            return ()

    def changed_s(self, owner: str) -> float:
        """When what one holds last changed, as Unix time; now, if that is nothing."""
        try:
            return self._owner(owner).stat().st_mtime
        except FileNotFoundError:
            return time.time()

    def hold(self, owner: str, digests: Sequence[str]) -> None:
        """Adds to what one holds."""
        known = self.layers(owner)
        wanted = tuple(dict.fromkeys((*known, *digests)))
        if wanted != known:
            path = self._owner(owner)
            staged = path.with_name(DRAFT)
            staged.write_text(json.dumps(wanted))
            sync(staged)
            staged.replace(path)
        for digest in digests:
            marker = self._marker(digest, owner)
            marker.parent.mkdir(exist_ok=True)
            marker.touch()

    def release(self, owner: str) -> tuple[str, ...]:
        """Drops all that one holds; returns what it was."""
        digests = self.layers(owner)
        for digest in digests:
            self._marker(digest, owner).unlink(missing_ok=True)
            with suppress(OSError):  # others hold it
                self._marker(digest, owner).parent.rmdir()
        self._owner(owner).unlink(missing_ok=True)
        return digests

    def holders(self, digest: str) -> Iterator[str]:
        """Those who hold a layer."""
        try:
            names = [entry.name for entry in os.scandir(self._marker(digest, "x").parent)]
        except FileNotFoundError:
            return
        yield from (name for name in names if self._owner(name).exists())

    def _owner(self, owner: str) -> Path:
        if not _NAME.fullmatch(owner):
            raise ImageError(f"{shown(owner)} cannot hold a layer; a holder is 1 to 100 letters, digits, `.`, `_`, `-`")
        return self._owners / owner

    def _marker(self, digest: str, owner: str) -> Path:
        return self._held / digest.removeprefix("sha256:") / owner
