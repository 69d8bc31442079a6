"""Starting one Firecracker in a folder of its own, and what its machine prints.

It opens its files by names in that folder: links to descriptors that it inherits, so that it may run under a host uid
that can reach none of them otherwise. It makes its two sockets there itself.

What the guest prints fills a FIFO of 64 KiB and nothing of the disk: what does not fit until somebody reads is lost.
"""

import os
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from benthic.sandbox.drivers.firecracker_api import API
from benthic.sandbox.drivers.qemu_command import environment
from benthic.sandbox.drivers.qemu_process import opened
from benthic.sandbox.errors import StartFailed
from benthic.sandbox.linux import Launch

FOLDER, CONSOLE = "firecracker", "console"
"""In a home: what it runs in, and where it prints."""
NAME = "firecracker-"
"""How the names of its processes begin."""
_WRITTEN = ("upper",)
_WORDS_KEPT = 600


def start_firecracker(
    program: str, home: Path, files: Mapping[str, Path], launch: Launch, *, name: str
) -> subprocess.Popen[bytes]:
    """Starts a Firecracker without a machine, which lives on without us.

    Args:
        files: what it may open, by the names that its API will be given.
        name: the state root's tag, a hyphen, and a name, for `running`.

    Raises:
        StartFailed: the program is not here, or a file cannot be opened.
    """
    folder = home / FOLDER
    folder.mkdir(mode=0o700)
    os.mkfifo(home / CONSOLE, 0o600)
    with ExitStack() as stack:
        descriptors = []
        for role, path in files.items():
            descriptors.append(stack.enter_context(opened(path, is_written=role in _WRITTEN)))
            (folder / role).symlink_to(f"/proc/self/fd/{descriptors[-1]}")
        if launch.uid is not None:
            os.chown(folder, launch.uid, launch.uid)
        # Open for reading too: a FIFO that nobody reads is no broken pipe.
        console = os.open(home / CONSOLE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        stack.callback(os.close, console)
        # It takes letters, digits and hyphens alone; `running` reads two of them as what they stand for.
        argv = [program, "--api-sock", API, "--id", f"{NAME}{name}".replace("_", "--")]
        try:
            return subprocess.Popen(
                launch.command(argv),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                cwd=folder,
                env=environment(os.environ),
                pass_fds=descriptors,
                start_new_session=True,
            )
        except OSError as error:
            raise StartFailed(f"{program} cannot be started: {error.strerror}", stage="start firecracker") from None


class Console:
    """What a machine prints, read now and then; `tail` is the end of what was read so far."""

    def __init__(self, home: Path) -> None:
        self._file = os.open(home / CONSOLE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._unfinished = b""
        self.tail = ""

    def lines(self) -> list[str]:
        """The whole lines that came since the last call."""
        data = self._unfinished
        while piece := self._read():
            data += piece
        whole, _, self._unfinished = data.rpartition(b"\n")
        self._unfinished = self._unfinished[-_WORDS_KEPT:]
        text = whole.decode("utf-8", "replace")
        self.tail = f"{self.tail}\n{text}"[-_WORDS_KEPT:].strip()
        return text.splitlines()

    def last_words(self) -> str:
        """For an error."""
        self.lines()
        return f"{self.tail}\n{self._unfinished.decode('utf-8', 'replace')}".strip()

    def close(self) -> None:
        """Leaves what comes to the next reader."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _read(self) -> bytes:
        try:
            return os.read(self._file, 1 << 16) if self._file >= 0 else b""
        except BlockingIOError:
            return b""
