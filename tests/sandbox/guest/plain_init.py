"""Init as a plain child of the test, without any isolation: what it does itself can be seen in a second."""

import asyncio
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benthic.sandbox.guest import Guest, JobSetup, build_init
from benthic.sandbox.guest.streams import connect_unix, listen_unix

STORY_S = 60.0


class PlainInit:
    """One init and a folder that its user may write to."""

    def __init__(
        self, *, program: Path | None = None, uid: int | None = None, env: dict[str, str] | None = None
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="benthic-init-"))
        self.work = self.folder / "work"
        self.work.mkdir()
        self.uid = uid if uid is not None else 1000 if os.getuid() == 0 else os.getuid()
        if os.getuid() == 0:
            self.folder.chmod(0o755)
            os.chown(self.work, self.uid, self.uid)
        self.setup = JobSetup(
            uid=self.uid, gid=self.uid if os.getuid() == 0 else os.getgid(), env=(("PATH", "/usr/bin:/bin"),), cwd="/"
        )
        listener = listen_unix(self.folder / "socket")
        switch: dict[str, Any] = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
        # A copy: another user cannot reach into this one's cache.
        copy = shutil.copy(program or build_init(), self.folder / "init")
        with (self.folder / "stderr").open("wb") as stderr:
            self.process = subprocess.Popen(
                [str(copy), "--listen-fd", str(listener.fileno())],
                pass_fds=[listener.fileno()],
                env=env or {},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                preexec_fn=_end_with_parent,
                **switch,
            )
        listener.close()

    async def connect(self) -> tuple[StreamReader, StreamWriter]:
        return await connect_unix(self.folder / "socket")

    async def guest(self) -> Guest:
        """A client, with the set-up given."""
        guest = await Guest.attach(self.connect)
        await guest.configure(self.setup)
        return guest

    def play(self, story: Callable[[Guest], Awaitable[None]]) -> None:
        """Runs a story of a test with a client of its own."""

        async def whole() -> None:
            guest = await self.guest()
            try:
                await asyncio.wait_for(story(guest), STORY_S)
            finally:
                await guest.close()

        asyncio.run(whole())

    def close(self) -> None:
        """Ends init; what it has started ends with it, since a monitor without init ends its tree."""
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder)


def _end_with_parent() -> None:
    """A suite that is killed leaves no init behind."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Waits for something that happens elsewhere."""
    deadline = asyncio.get_running_loop().time() + limit_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen"
        await asyncio.sleep(0.01)
