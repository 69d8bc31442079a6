"""What flows while a command runs: output with back-pressure, input, terminals, ports; and all of it across cuts."""

import asyncio
import os
import signal
import time
from asyncio import StreamReader, StreamWriter

import pytest

from benthic.sandbox.errors import GuestLost, PathError
from benthic.sandbox.guest import Guest, Terminal
from benthic.sandbox.guest.connection import UnknownJob
from benthic.sandbox.records import Command, Reason
from tests.sandbox.guest.plain_init import PlainInit

NUMBERS = b"".join(b"%d\n" % number for number in range(1, 200_001))


async def stdout_of(guest: Guest, job: str, **offsets: int) -> bytes:
    return b"".join([chunk.data async for chunk in guest.output(job, **offsets) if chunk.stream == "stdout"])


def test_a_reader_gets_every_byte_of_both_streams(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        await guest.start("a", Command(shell="seq 1 200000; seq 1 200000 >&2"), holds_output=True)
        seen = {"stdout": b"", "stderr": b""}
        async for chunk in guest.output("a"):
            seen[chunk.stream] += chunk.data
        assert seen == {"stdout": NUMBERS, "stderr": NUMBERS}
        assert (await guest.wait("a")).dropped_stdout_bytes == len(NUMBERS) - (1 << 20)

    init.play(story)


def test_a_slow_reader_slows_the_command_and_memory_stays_bounded(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        await guest.start("a", Command(shell="yes", timeout_s=30), holds_output=True)
        output = guest.output("a")
        async for _ in output:
            break
        await asyncio.sleep(0.5)
        info = (await guest.jobs())[0]
        assert info.stdout_bytes < 1 << 20, "what is ahead of its reader is bounded"
        assert int(statm(init).split()[1]) * 4096 < 8 << 20
        await output.aclose()
        await asyncio.sleep(0.3)
        assert (await guest.jobs())[0].stdout_bytes > info.stdout_bytes + (1 << 20), "without a reader it runs on"

    init.play(story)


def statm(init: PlainInit) -> str:
    with open(f"/proc/{init.process.pid}/statm") as file:
        return file.read()


def test_a_reader_that_waits_does_not_count_as_silence(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        command = Command(shell="seq 1 200000", quiet_timeout_s=0.3, timeout_s=30)
        await guest.start("a", command, holds_output=True)
        seen = 0
        async for chunk in guest.output("a"):
            if not seen:
                await asyncio.sleep(1.0)
            seen += len(chunk.data)
        assert seen == len(NUMBERS)
        assert (await guest.wait("a")).reason is Reason.EXITED

    init.play(story)


def test_a_command_that_waits_for_a_reader_goes_on_when_that_reader_will_never_come(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        command = Command(shell="seq 1 200000", timeout_s=30)
        await guest.start("a", command, holds_output=True)
        await guest.start("b", command, holds_output=True)
        assert (await guest.run("a", command)).returncode == 0, "the same client runs it without reading"
        other = await init.guest()
        assert (await other.wait("b")).returncode == 0, "another client does not know of it"
        await other.close()

    init.play(story)


def test_output_can_be_read_from_any_offset_also_after_the_end(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        await guest.run("a", Command(shell="seq 1 1000"))
        whole = b"".join(b"%d\n" % number for number in range(1, 1001))
        for offset in (0, 1, 500, len(whole) - 1, len(whole), len(whole) + 99):
            assert await stdout_of(guest, "a", stdout=offset) == whole[offset:]

    init.play(story)


def test_a_reader_gets_the_last_words_of_a_command_that_ran_out_of_time(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        command = Command(shell="seq 1 50000; sleep 60", timeout_s=0.5)
        await guest.start("a", command, holds_output=True)
        words = b"".join(b"%d\n" % number for number in range(1, 50_001))
        assert await stdout_of(guest, "a") == words
        assert (await guest.wait("a")).reason is Reason.TIMEOUT
        assert await stdout_of(guest, "a", stdout=len(words) - 6) == b"50000\n", "also later"

    init.play(story)


def test_a_reader_that_sleeps_does_not_hold_up_a_command_that_ran_out_of_time(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        await guest.start("a", Command(shell="yes", timeout_s=0.5), holds_output=True)
        output = guest.output("a")
        await anext(output)
        result = await asyncio.wait_for(guest.wait("a"), 10)
        assert result.reason is Reason.TIMEOUT
        await output.aclose()

    init.play(story)


def test_what_was_dropped_before_a_reader_came_is_skipped(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        await guest.run("a", Command(shell="seq 1 200000", max_output_bytes=1000))
        seen = await stdout_of(guest, "a")
        assert seen.startswith(NUMBERS[:500])
        assert NUMBERS.endswith(seen[500:])
        assert 500 <= len(seen[500:]) <= 256 << 10

    init.play(story)


def test_an_unknown_job_has_no_output(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        with pytest.raises(UnknownJob):
            await stdout_of(guest, "nobody")
        with pytest.raises(UnknownJob):
            await guest.feed("nobody", b"x")

    init.play(story)


def test_input_and_output_make_a_conversation(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        await guest.start("a", Command(argv=("cat",)), keeps_input=True)
        output = guest.output("a")
        for line in (b"one\n", b"two\n", b"x" * 100_000 + b"\n"):
            await guest.feed("a", line)
            seen = b""
            while len(seen) < len(line):
                seen += (await anext(output)).data
            assert seen == line
        await guest.feed("a", None)
        assert (await guest.wait("a")).returncode == 0

    init.play(story)


def test_a_command_that_does_not_read_makes_its_feeder_wait(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        await guest.start("a", Command(shell="sleep 60"), keeps_input=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(guest.feed("a", bytes(5_000_000)), 0.5)
        await guest.signal("a", signal.SIGKILL)

    init.play(story)


# ---- terminals ----


def test_a_terminal_has_a_size_an_echo_and_an_end(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        text = (
            'tty; stty size; trap "stty size; exit 5" WINCH; read line; echo "got $line"; while :; do sleep 0.05; done'
        )
        await guest.start("a", Command(shell=text), terminal=Terminal(30, 90), keeps_input=True)
        output = guest.output("a")
        seen = b""
        await guest.feed("a", b"hello\n")
        while b"got hello" not in seen:
            seen += (await anext(output)).data
        assert seen.startswith(b"/dev/pts/") or seen.startswith(b"hello\r\n/dev/pts/")
        assert b"30 90\r\n" in seen
        await guest.resize("a", Terminal(40, 132))
        seen = b"".join([chunk.data async for chunk in output])
        assert b"40 132\r\n" in seen
        assert (await guest.wait("a")).returncode == 5

    init.play(story)


def test_an_interrupt_typed_at_a_terminal_reaches_the_command(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        await guest.start("a", Command(argv=("cat",)), terminal=Terminal(), keeps_input=True)
        await guest.feed("a", b"hello\n")
        async for _ in guest.output("a"):
            break
        await guest.feed("a", b"\x03")
        result = await guest.wait("a")
        assert (result.returncode, result.reason) == (-signal.SIGINT, Reason.SIGNALLED)

    init.play(story)


def test_the_end_of_input_ends_a_shell_at_a_terminal(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        command = Command(argv=("sh",), stdin=b"echo $((6 * 7))\n")
        result = await guest.run("a", Command(argv=("cat",), stdin=b"x"))
        await guest.start("b", command, terminal=Terminal())
        result = await guest.wait("b")
        assert b"42\r\n" in result.stdout
        assert result.returncode == 0

    init.play(story)


# ---- ports ----


async def far_end(reader: StreamReader, writer: StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data.upper())
        await writer.drain()
    writer.write(b"bye")
    writer.close()


def test_a_port_inside_is_reached_by_many_connections(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        inside = await asyncio.start_server(far_end, "127.0.0.1", 0)
        server = await guest.serve_port(inside.sockets[0].getsockname()[1], init.folder / "port")

        async def visit(letter: bytes) -> bytes:
            reader, writer = await asyncio.open_unix_connection(init.folder / "port")
            writer.write(letter * 500_000)
            writer.write_eof()
            return await reader.read()

        answers = await asyncio.gather(*(visit(letter) for letter in (b"a", b"b", b"c")))
        assert answers == [letter * 500_000 + b"bye" for letter in (b"A", b"B", b"C")]
        server.close()
        inside.close()

    init.play(story)


def test_a_port_where_nobody_listens_is_a_closed_connection(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        server = await guest.serve_port(1, init.folder / "port")
        reader, writer = await asyncio.open_unix_connection(init.folder / "port")
        assert await reader.read() == b""
        writer.close()
        server.close()
        reader, writer = await asyncio.open_unix_connection(init.folder / "socket")
        with pytest.raises(PathError, match="nothing listens"):
            await guest.forward(1, StreamReader(), writer)

    init.play(story)


# ---- cuts ----


class CuttingInit(PlainInit):
    """Its streams can be cut at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.writers: list[StreamWriter] = []

    async def connect(self) -> tuple[StreamReader, StreamWriter]:
        reader, writer = await super().connect()
        self.writers.append(writer)
        return reader, writer

    async def cut_often(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            for writer in self.writers:
                writer.transport.abort()
            self.writers.clear()


@pytest.fixture
def cutting() -> object:
    started = CuttingInit()
    yield started
    started.close()


def test_cuts_lose_and_double_nothing(cutting: CuttingInit) -> None:
    async def story(guest: Guest) -> None:
        cutter = asyncio.create_task(cutting.cut_often(0.03))
        counter = f"{cutting.work}/count"
        command = Command(shell=f"echo . >> {counter}; wc -c; seq 1 20000", stdin=b"x" * 700_000)
        for number in range(15):
            result = await guest.run(f"r{number}", command)
            assert result.stdout.split(b"\n", 1)[0].strip() == b"700000"
            await guest.start(f"o{number}", Command(shell="seq 1 200000"), holds_output=True)
            assert await stdout_of(guest, f"o{number}") == NUMBERS
            content = os.urandom(500_000)
            await guest.files.write(f"{cutting.work}/file", content)
            assert await guest.files.read(f"{cutting.work}/file") == content
        cutter.cancel()
        assert (cutting.work / "count").read_bytes() == b".\n" * 15

    cutting.play(story)


def test_a_signal_is_sent_once_however_often_the_stream_is_cut(cutting: CuttingInit) -> None:
    async def story(guest: Guest) -> None:
        text = "trap 'n=$((n+1))' USR1; echo ready; while [ ! -e done ]; do sleep 0.02; done; echo $n"
        await guest.start("a", Command(shell=text, cwd=str(cutting.work)), holds_output=True)
        output = guest.output("a")
        assert (await anext(output)).data == b"ready\n"
        cutter = asyncio.create_task(cutting.cut_often(0.02))
        for _ in range(10):
            await guest.signal("a", signal.SIGUSR1)
            await asyncio.sleep(0.1)
        cutter.cancel()
        (cutting.work / "done").touch()
        assert b"".join([chunk.data async for chunk in output if chunk.stream == "stdout"]) == b"10\n"

    cutting.play(story)


def test_the_newest_client_wins_and_the_older_one_comes_back_only_by_itself(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        other = await init.guest()
        assert (await other.run("a", Command(shell="echo x"))).stdout == b"x\n"
        await other.close()
        assert (await guest.run("a", Command(shell="echo x"))).stdout == b"x\n"

    init.play(story)


def test_a_dead_init_is_noticed_within_the_time_given(init: PlainInit) -> None:
    async def story(_: Guest) -> None:
        guest = await Guest.attach(init.connect, timeout_s=0.5)
        waiting = asyncio.create_task(guest.run("a", Command(shell="sleep 60")))
        output = asyncio.create_task(stdout_of(guest, "a"))
        await asyncio.sleep(0.2)
        init.process.kill()
        start_s = time.monotonic()
        for task in (waiting, output):
            with pytest.raises(GuestLost):
                await task
        assert time.monotonic() - start_s < 5
        with pytest.raises(GuestLost):
            await guest.jobs()
        await guest.close()

    init.play(story)
