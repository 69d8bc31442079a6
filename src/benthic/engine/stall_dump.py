"""The file in which a stalled engine process leaves its picture: its stacks, and what its engine held.

It lies among the temporary files, where it may be swept away or find no room. That takes the picture, and nothing else.
"""

import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)


class StallDump:
    """One such file, made empty; `path` is None where none can be made."""

    def __init__(self) -> None:
        self.path: Path | None = None
        try:
            descriptor, name = tempfile.mkstemp(prefix="benthic-stall-", suffix=".txt")
        except OSError as error:
            logger.warning("a stalled step will leave no picture: no temporary file can be made (%s)", error)
            return
        os.close(descriptor)
        self.path = Path(name)

    @property
    def place(self) -> str:
        """Where the picture is, for a message; that it is gone, if it is."""
        is_there = self.path is not None and self.path.exists()
        return f"its state is in {self.path}" if is_there else "what it wrote of its state is lost"

    def text(self) -> str:
        """The picture; says so where there is none."""
        try:
            return "(no picture)" if self.path is None else self.path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            return f"(its picture cannot be read: {error})"

    def remove_if_empty(self) -> None:
        """Removes the file unless a picture was written."""
        if self.path is not None:
            with suppress(OSError):
                if self.path.stat().st_size == 0:
                    self.path.unlink()
