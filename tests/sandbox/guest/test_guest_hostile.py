"""What a captured init may say to the host, and what becomes of it: a named error, in bounded time and memory."""

import asyncio
import json
import os
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from benthic.sandbox.errors import GuestLost, PathError
from benthic.sandbox.guest import Guest
from benthic.sandbox.guest.connection import WINDOW, OutputReader
from benthic.sandbox.guest.frames import PREFIX, Frame, FrameError, encode_frame, key_of
from benthic.sandbox.records import Chunk, Command

END = {
    "reason": "exited",
    "returncode": 0,
    "stdout": 0,
    "stderr": 0,
    "stdout_total": 0,
    "stderr_total": 0,
    "cpu_us": 1,
    "peak_bytes": 1,
    "written_bytes": 0,
    "duration_ms": 1,
}
Say = Callable[[dict[str, Any], bytes], None]
Answering = Callable[[dict[str, Any], Say], None]


class FakeInit:
    """Greets as init does, and answers as it is told."""

    def __init__(self, path: Path, answering: Answering) -> None:
        self.path, self.answering = path, answering
        self.connections = 0

    async def connect(self) -> tuple[StreamReader, StreamWriter]:
        return await asyncio.open_unix_connection(self.path)

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        key = 0
        self.connections += 1

        def say(header: dict[str, Any], body: bytes = b"") -> None:
            writer.write(encode_frame(Frame(header, body), key))

        try:
            while True:
                _, header_len, body_len, _, _ = PREFIX.unpack(await reader.readexactly(PREFIX.size))
                header = json.loads(await reader.readexactly(header_len))
                await reader.readexactly(body_len)
                if header["op"] == "hello":
                    hello = {"hello": header["nonce"], "protocol": 1, "boot_id": "b", "is_configured": 1, "pid": 1}
                    say(hello)
                    key = key_of(header["nonce"])
                else:
                    self.answering(header, say)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def guest_of(path: Path, answering: Answering) -> AsyncIterator[tuple[Guest, FakeInit]]:
    fake = FakeInit(path, answering)
    server = await asyncio.start_unix_server(fake.serve, path)
    guest = await Guest.attach(fake.connect, timeout_s=1.0)
    try:
        yield guest, fake
    finally:
        await guest.close()
        server.close()


def play(path: Path, answering: Answering, story: Callable[[Guest], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with guest_of(path / "s", answering) as (guest, _):
            await asyncio.wait_for(story(guest), 20)

    asyncio.run(whole())


def ending_with(**changes: Any) -> Answering:
    body = changes.pop("body", b"")

    def answer(header: dict[str, Any], say: Say) -> None:
        if header["op"] == "wait":
            say({"id": header["id"], **END, **changes}, body)
        else:
            say({"id": header["id"], "fed": 0, "is_new": 1}, b"")

    return answer


def test_an_honest_end_is_believed(tmp_path: Path) -> None:
    async def story(guest: Guest) -> None:
        result = await guest.run("a", Command(shell="true"))
        assert (result.returncode, result.stdout) == (0, b"hello")

    play(tmp_path, ending_with(stdout=5, stdout_total=5, body=b"hello"), story)


LIES: dict[str, dict[str, Any]] = {
    "unknown reason": {"reason": "because"},
    "reason of another type": {"reason": {}},
    "giant number": {"returncode": 1 << 80},
    "text for a number": {"cpu_us": "1"},
    "true for a number": {"cpu_us": None},
    "negative size": {"stdout": -1},
    "more kept than there was": {"stdout": 5, "stdout_total": 4},
    "kept bytes that never come": {"stdout": 1 << 40, "stdout_total": 1 << 40},
    "stuck": {"reason": "stuck"},
}


@pytest.mark.parametrize("lie", LIES)
def test_an_end_that_makes_no_sense_is_a_lost_guest(tmp_path: Path, lie: str) -> None:
    async def story(guest: Guest) -> None:
        with pytest.raises(GuestLost):
            await guest.run("a", Command(shell="true"))

    play(tmp_path, ending_with(**LIES[lie]), story)


def test_an_end_that_never_comes_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benthic.sandbox.guest.job_calls.GRACE_S", 0.5)

    def answer(header: dict[str, Any], say: Say) -> None:
        if header["op"] != "wait":
            say({"id": header["id"], "fed": 0}, b"")

    async def story(guest: Guest) -> None:
        with pytest.raises(GuestLost, match="within"):
            await guest.run("a", Command(shell="true", timeout_s=0.5))
        guest.is_paused = True
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(guest.run("b", Command(shell="true", timeout_s=0.1)), 2)

    play(tmp_path, answer, story)


def test_answers_that_nobody_asked_for_and_answers_sent_twice_are_ignored(tmp_path: Path) -> None:
    honest = ending_with()

    def answer(header: dict[str, Any], say: Say) -> None:
        for request_id in (0, -1, header["id"] + 1000, 1 << 70):
            say({"id": request_id, "returncode": 99}, b"")
        honest(header, say)
        honest(header, say)
        say({"id": header["id"], "error": "refused"}, b"")

    async def story(guest: Guest) -> None:
        for number in range(10):
            assert (await guest.run(f"j{number}", Command(shell="true"))).returncode == 0

    play(tmp_path, answer, story)


def test_output_that_was_not_asked_for_is_a_lost_guest(tmp_path: Path) -> None:
    def answer(header: dict[str, Any], say: Say) -> None:
        if header["op"] == "follow":
            for offset in range(0, 1 << 20, 1 << 16):
                say({"output": "a", "stream": 0, "offset": offset}, bytes(1 << 16))
        elif header["op"] == "start":
            say({"id": header["id"], "fed": 0}, b"")

    async def story(guest: Guest) -> None:
        await guest.start("a", Command(shell="true"))
        output = guest.output("a")
        with pytest.raises(GuestLost, match="not asked for"):
            await read_slowly(output)

    play(tmp_path, answer, story)


async def read_slowly(output: AsyncIterator[Chunk]) -> None:
    async for _ in output:
        await asyncio.sleep(1)


def test_a_reader_holds_no_more_than_its_window() -> None:
    reader = OutputReader("a", [0, 0])
    reader.put(0, bytes(WINDOW), 0)
    reader.put(1, bytes(WINDOW), 0)
    for stream in (0, 1):
        with pytest.raises(FrameError, match="not asked for"):
            reader.put(stream, b"x", WINDOW)


NONSENSE: dict[str, dict[str, Any]] = {
    "output without a stream": {"output": "a"},
    "output of a third stream": {"output": "a", "stream": 2, "offset": 0},
    "output at a text": {"output": "a", "stream": 0, "offset": "0"},
    "noise": {"noise": 1},
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_a_guest_that_makes_no_sense_again_and_again_is_lost(tmp_path: Path, nonsense: str) -> None:
    async def story(guest: Guest) -> None:
        with pytest.raises(GuestLost, match="makes no sense"):
            await guest.run("a", Command(shell="true"))

    play(tmp_path, lambda header, say: say(NONSENSE[nonsense], b""), story)


def test_a_flood_of_empty_frames_starves_nobody(tmp_path: Path) -> None:
    honest = ending_with()

    def answer(header: dict[str, Any], say: Say) -> None:
        for _ in range(20_000):
            say({}, b"")
        honest(header, say)

    async def story(guest: Guest) -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticking = asyncio.create_task(tick())
        await guest.run("a", Command(shell="true"))
        ticking.cancel()
        assert ticks > 3

    play(tmp_path, answer, story)


@pytest.mark.parametrize(
    "line",
    [
        {"name": "../../etc/passwd", "type": "file", "size": 1, "mode": 1, "modified_ns": 1},
        {"name": "..", "type": "folder", "size": 1, "mode": 1, "modified_ns": 1},
        {"name": "", "type": "file", "size": 1, "mode": 1, "modified_ns": 1},
        {"name": "a", "type": "door", "size": 1, "mode": 1, "modified_ns": 1},
        {"name": "a", "type": "file", "size": -1, "mode": 1, "modified_ns": 1},
        {"name": "a", "type": "link", "size": 1, "mode": 1, "modified_ns": 1, "target": 5},
        {"name": ["a"], "type": "file"},
        {},
        [],
        "a",
    ],
    ids=range(10),
)
def test_names_that_no_folder_has_are_refused(tmp_path: Path, line: Any) -> None:
    honest = ending_with(stdout_total=1)

    def answer(header: dict[str, Any], say: Say) -> None:
        if header["op"] == "follow" and header["is_fresh"]:
            say({"output": header["job"], "stream": 0, "offset": 0}, json.dumps(line).encode() + b"\n")
        elif header["op"] != "follow":
            honest(header, say)

    async def story(guest: Guest) -> None:
        with pytest.raises(GuestLost):
            await guest.files.list("/work")

    play(tmp_path, answer, story)


def test_a_failed_file_call_is_told_with_its_reason(tmp_path: Path) -> None:
    async def story(guest: Guest) -> None:
        with pytest.raises(PathError, match="No such file"):
            await guest.files.remove("/x")

    play(tmp_path, ending_with(returncode=1, failure="cannot remove", errno=2), story)


def test_more_content_than_was_asked_for_is_refused(tmp_path: Path) -> None:
    honest = ending_with()

    def answer(header: dict[str, Any], say: Say) -> None:
        if header["op"] == "follow":
            say({"output": header["job"], "stream": 0, "offset": header["stdout"]}, bytes(100_000))
        else:
            honest(header, say)

    async def story(guest: Guest) -> None:
        with pytest.raises(PathError, match="more than"):
            await guest.files.read("/x", max_bytes=50_000)

    play(tmp_path, answer, story)


@pytest.mark.parametrize("greeting", ["silence", "hang up", "other nonce", "other protocol", "noise"])
def test_whoever_does_not_greet_is_a_lost_guest(tmp_path: Path, greeting: str) -> None:
    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        _, header_len, _, _, _ = PREFIX.unpack(await reader.readexactly(PREFIX.size))
        header = json.loads(await reader.readexactly(header_len))
        hello = {"hello": header["nonce"], "protocol": 1, "boot_id": "b"}
        if greeting == "other nonce":
            writer.write(encode_frame(Frame({**hello, "hello": "0" * 32}), 0))
        elif greeting == "other protocol":
            writer.write(encode_frame(Frame({**hello, "protocol": 2}), 0))
        elif greeting == "noise":
            writer.write(os.urandom(100_000))
        if greeting != "hang up":
            await reader.read()
        writer.close()

    async def story() -> None:
        server = await asyncio.start_unix_server(serve, tmp_path / "s")
        with pytest.raises(GuestLost):
            await Guest.attach(lambda: asyncio.open_unix_connection(tmp_path / "s"), timeout_s=0.5)
        server.close()

    asyncio.run(asyncio.wait_for(story(), 20))
