"""The host's end of the stream to init, the first process of every sandbox: commands, terminals, ports.

Init keeps a table of jobs under ids that the host chooses. It lives on when its client is cut off or killed; a new
client finds every job where it stands, with the first and last part of its output, until it says `forget`. Starting
an id that init knows joins that job: sending the same call twice is safe. A `Guest` reconnects by itself.

    guest = await Guest.attach(machine.connect)
    await guest.configure(JobSetup(uid=1000, env=(("PATH", "/usr/bin:/bin"),), cwd="/work"))
    result = await guest.run("s17", Command(shell="make test", timeout_s=60))
    await guest.forget("s17")

Init's word is no evidence: what runs inside may have got at it. Frames are bounded and validated here, and whoever
needs the truth (memory, death) asks the driver.
"""

from asyncio import Server, StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from benthic.sandbox.guest.files import Files
from benthic.sandbox.guest.records import Hello, JobInfo, JobSetup, Terminal
from benthic.sandbox.records import Chunk, Command, Result

Connect = Callable[[], Awaitable[tuple[StreamReader, StreamWriter]]]


class Guest:
    """A client of one sandbox's init. Methods may be called concurrently.

    Every method raises `GuestLost` when init cannot be reached or stops making sense; ask the driver why.
    """

    files: Files
    """Files inside, as the sandbox's user sees them."""
    hello: Hello
    """What init said when it was last connected to."""

    @classmethod
    async def attach(cls, connect: Connect, *, timeout_s: float = 10.0) -> "Guest":
        """Connects and waits for init's greeting, again and again until `timeout_s`.

        Args:
            connect: makes a new stream, as `Machine.connect`; called again whenever the stream is cut.

        Raises:
            GuestLost: no greeting came in time.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Ends this client; init and its jobs go on."""
        raise NotImplementedError

    async def configure(self, setup: JobSetup) -> None:
        """Replaces what holds for every command started from now on."""
        raise NotImplementedError

    async def run(self, job: str, command: Command) -> Result:
        """Runs a command to its end, or joins the job of that id; it stays in the table until `forget`.

        A program that cannot be started ends with 127 (not found) or 126 and a line on stderr, as in a shell. A
        command that ran out of time is no error here: `reason` says so, and everything it started is gone.

        Args:
            job: at most 64 letters, digits, '-', '_' or '.'.

        Raises:
            GuestLost: also when init did not end the command within its time and some seconds more.
        """
        raise NotImplementedError

    async def start(
        self,
        job: str,
        command: Command,
        *,
        terminal: Terminal | None = None,
        keeps_input: bool = False,
        holds_output: bool = False,
    ) -> bool:
        """Starts a command in the background; False if the id was known and that job was joined.

        Args:
            terminal: runs it on a pseudo-terminal of this size; all output is then stdout.
            keeps_input: leaves stdin open after `command.stdin` for `feed`.
            holds_output: it waits for a reader: nothing is dropped before `output` is asked for.
        """
        raise NotImplementedError

    async def wait(self, job: str) -> Result:
        """Until the job has ended: its own process, whatever it left in the background.

        Raises:
            KeyError: init does not know the id.
        """
        raise NotImplementedError

    def output(self, job: str, *, stdout: int = 0, stderr: int = 0) -> AsyncIterator[Chunk]:
        """A job's output from these offsets, then as it comes, until it ends.

        While somebody reads, a command that prints faster waits. What was dropped before is skipped. One reader a job:
        a second one takes over.
        """
        raise NotImplementedError

    async def feed(self, job: str, data: bytes | None) -> None:
        """More input, returned once init has taken it and room is left; None ends the input.

        A command that does not read its input makes this wait; one that has closed it makes it return at once.
        """
        raise NotImplementedError

    async def signal(self, job: str, signal: int) -> None:
        """To every process that the job has started and not only its first; nothing happens if all are gone."""
        raise NotImplementedError

    async def resize(self, job: str, terminal: Terminal) -> None:
        """Sets the size of a job's terminal."""
        raise NotImplementedError

    async def jobs(self) -> list[JobInfo]:
        """All jobs that init knows."""
        raise NotImplementedError

    async def forget(self, job: str) -> None:
        """Frees what init keeps of a job, after ending it if it runs; unknown ids are fine.

        What an ended job left in the background lives on.
        """
        raise NotImplementedError

    async def serve_port(self, port: int, path: Path) -> Server:
        """A unix socket on the host that leads to a TCP port on the sandbox's loopback, until the server is closed."""
        raise NotImplementedError

    async def forward(self, port: int, reader: StreamReader, writer: StreamWriter) -> None:
        """Carries one connection to a TCP port on the sandbox's loopback, both ways, until both have ended.

        Raises:
            PathError: nothing listens there.
        """
        raise NotImplementedError

    async def reseed(self, entropy: bytes, now_s: float) -> None:
        """Gives a cloned machine randomness and a clock (Unix time) of its own."""
        raise NotImplementedError

    async def shutdown(self) -> None:
        """Ends every process, then init itself; a machine is switched off. Returns once init has said yes."""
        raise NotImplementedError
