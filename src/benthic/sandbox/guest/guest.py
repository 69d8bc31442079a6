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

import asyncio
import resource
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

from benthic.sandbox.guest.connection import Connect, Connection, UnknownJob
from benthic.sandbox.guest.files import Files
from benthic.sandbox.guest.frames import Frame
from benthic.sandbox.guest.job_calls import JobCalls
from benthic.sandbox.guest.jobs import FEED_BYTES, JobEnd, command_fields
from benthic.sandbox.guest.loopback import GuestLoopback
from benthic.sandbox.guest.ports import forward, serve_port
from benthic.sandbox.guest.records import Hello, JobInfo, JobSetup, Terminal
from benthic.sandbox.records import Chunk, Command, Result


class Guest:
    """A client of one sandbox's init. Methods may be called concurrently.

    Every method raises `GuestLost` when init cannot be reached or stops making sense; ask the driver why.
    """

    def __init__(self, connection: Connection, hello: Hello) -> None:
        self._connection = connection
        self._jobs = JobCalls(connection)
        self.files = Files(self._jobs)
        """Files inside, as the sandbox's user sees them."""
        self.loopback = GuestLoopback(connection, self._jobs)
        """Its own loopback, with sockets that init keeps and this process serves."""

    @classmethod
    async def attach(cls, connect: Connect, *, timeout_s: float = 10.0) -> "Guest":
        """Connects and waits for init's greeting, again and again until `timeout_s`.

        Args:
            connect: makes a new stream, as `Machine.connect`; called again whenever the stream is cut. A SandboxError
                from it means that there is no hope; an OSError, that it may work soon.

        Raises:
            GuestLost: no greeting came in time.
        """
        connection = Connection(connect, timeout_s)
        try:
            return cls(connection, await connection.open())
        except BaseException:
            await connection.close()
            raise

    @property
    def is_paused(self) -> bool:
        """Set by whoever freezes the sandbox: time in which it stands still is not held against its commands."""
        return self._jobs.is_paused

    @is_paused.setter
    def is_paused(self, value: bool) -> None:
        self._jobs.is_paused = value

    @property
    def hello(self) -> Hello:
        """What init said when it was last connected to."""
        assert self._connection.hello is not None, "a guest is made after its greeting"
        return self._connection.hello

    async def close(self) -> None:
        """Ends this client; init and its jobs go on, but for connections that this client carries."""
        self.loopback.stop()
        await self._connection.close()
        await self.loopback.close()

    async def configure(self, setup: JobSetup) -> None:
        """Replaces what holds for every command started from now on."""
        limits = [
            number for name, value in setup.rlimits for number in (getattr(resource, f"RLIMIT_{name.upper()}"), value)
        ]
        await self._connection.request(
            "configure",
            setup.seccomp,
            uid=setup.uid,
            gid=setup.gid,
            env=[f"{name}={value}" for name, value in setup.env],
            cwd=setup.cwd,
            rlimits=limits,
            output_bytes=setup.output_bytes,
        )

    async def run(self, job: str, command: Command) -> Result:
        """Runs a command to its end, or joins the job of that id; it stays in the table until `forget`.

        A program that cannot be started ends with 127 (not found) or 126 and a line on stderr, as in a shell. A
        command that ran out of time is no error here: `reason` says so, and everything it started is gone.

        Args:
            job: at most 64 letters, digits, '-', '_' or '.'.

        Raises:
            GuestLost: also when init did not end the command within its time and some seconds more.
            CallRefused: too many jobs; forget some.
        """
        start = self._jobs.start(job, command.stdin, **command_fields(command))
        asked = self._jobs.ask_end(job)  # both travel at once
        feeding = asyncio.create_task(self._feed_rest(job, command, start))
        try:
            await asyncio.wait([start])
            start.result()
            return await self._result(job, await self._jobs.end(asked, command.timeout_s))
        finally:
            feeding.cancel()
            asked.cancel()

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

        Raises:
            CallRefused: too many jobs; forget some.
        """
        fields = command_fields(command, terminal=terminal, keeps_input=keeps_input, holds_output=holds_output)
        start = self._jobs.start(job, command.stdin, **fields)
        await self._feed_rest(job, command, start, keeps_input=keeps_input)
        return (await start).header.get("is_new") == 1

    async def wait(self, job: str, *, limit_s: float | None = None) -> Result:
        """Until the job has ended: its own process, whatever it left in the background.

        Args:
            limit_s: its time limit, if known: should init not keep it, the guest counts as lost some seconds later.

        Raises:
            UnknownJob: init does not know the id.
        """
        return await self._result(job, await self._jobs.end(self._jobs.ask_end(job), limit_s))

    def output(self, job: str, *, stdout: int = 0, stderr: int = 0) -> AsyncGenerator[Chunk, None]:
        """A job's output from these offsets, then as it comes, until it ends.

        While somebody reads, a command that prints faster waits. What was dropped before is skipped. One reader a job:
        a second one takes over.

        Raises:
            UnknownJob: init does not know the id.
        """
        return self._jobs.output(job, stdout=stdout, stderr=stderr)

    async def feed(self, job: str, data: bytes | None) -> None:
        """More input, returned once init has taken it and room is left; None ends the input.

        A command that does not read its input makes this wait; one that has closed it makes it return at once.

        Raises:
            UnknownJob: init does not know the id.
        """
        await self._jobs.feed(job, data)

    async def signal(self, job: str, signal: int) -> None:
        """To every process that the job has started and not only its first; nothing happens if all are gone."""
        await self._connection.request("signal", job=job, signal=signal)

    async def resize(self, job: str, terminal: Terminal) -> None:
        """Sets the size of a job's terminal."""
        await self._connection.request("resize", job=job, rows=terminal.rows, columns=terminal.columns)

    async def jobs(self) -> list[JobInfo]:
        """All jobs that init knows."""
        return await self._jobs.table()

    async def forget(self, job: str) -> None:
        """Frees what init keeps of a job, after ending it if it runs; unknown ids are fine.

        What an ended job left in the background lives on.
        """
        await self._jobs.forget(job)

    async def serve_port(self, port: int, path: Path) -> asyncio.Server:
        """A unix socket on the host that leads to a TCP port on the sandbox's loopback, until the server is closed."""
        return await serve_port(self._jobs, port, path)

    async def forward(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries one connection to a TCP port on the sandbox's loopback, both ways, until the far end closes.

        Raises:
            PathError: nothing listens there.
        """
        await forward(self._jobs, port, reader, writer)

    async def reseed(self, entropy: bytes, now_s: float) -> None:
        """Gives a cloned machine randomness and a clock (Unix time) of its own."""
        await self._connection.request("reseed", entropy, now_ns=int(now_s * 1e9))

    async def shutdown(self) -> None:
        """Ends every process, then init itself; a machine is switched off. Returns once init has said yes."""
        await self._connection.request("shutdown")
        await self.close()

    async def _feed_rest(
        self, job: str, command: Command, start: asyncio.Future[Frame], *, keeps_input: bool = False
    ) -> None:
        """Feeds what did not fit into the call that started a job, or what an earlier client had not fed yet."""
        fed_bytes = self._jobs.fed_bytes(job, await start)
        if len(command.stdin) <= FEED_BYTES:
            return
        with suppress(UnknownJob):
            await self._jobs.feed(job, command.stdin[fed_bytes:])
            if not keeps_input:
                await self._jobs.feed(job, None)

    async def _result(self, job: str, end: JobEnd) -> Result:
        if len(end.body) == end.stdout_bytes + end.stderr_bytes:
            stdout, stderr = end.body[: end.stdout_bytes], end.body[end.stdout_bytes :]
        else:
            stdout = await self._jobs.kept(job, 0, end.stdout_bytes)
            stderr = await self._jobs.kept(job, 1, end.stderr_bytes)
        return Result(
            returncode=end.returncode,
            stdout=stdout,
            stderr=stderr,
            reason=end.reason,
            dropped_stdout_bytes=end.dropped_stdout_bytes,
            dropped_stderr_bytes=end.dropped_stderr_bytes,
            usage=end.usage,
            duration_s=end.duration_s,
        )
