"""Sockets of the loopback inside that the host serves: connections both ways, questions, bounds, and who may listen."""

import asyncio
import signal
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from benthic.sandbox.guest import Guest
from benthic.sandbox.records import Command
from tests.sandbox.guest.plain_init import PlainInit

Talk = Callable[[StreamReader, StreamWriter], Coroutine[Any, Any, None]]
MIB = 1 << 20


def free_port(type_: int = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, type_) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


async def served(guest: Guest, talk: Talk, port: int | None = None) -> int:
    """A port inside, each of whose connections talks so."""
    port = port or free_port()
    await guest.loopback.listen("127.0.0.1", port, lambda *streams: asyncio.create_task(talk(*streams)))
    return port


async def echo(reader: StreamReader, writer: StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.write(b" and over")
    writer.close()


def test_a_connection_carries_both_ways_and_each_side_may_end_before_the_other(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        port = await served(guest, echo)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.write_eof()
        assert await reader.read() == b" and over"
        writer.close()

    init.play(story)


def test_much_goes_both_ways_at_once_and_nothing_is_lost_or_swapped(init: PlainInit) -> None:
    sent = bytes(range(251)) * (3 * MIB // 251)

    async def greet(reader: StreamReader, writer: StreamWriter) -> None:
        receiving = asyncio.create_task(reader.read(-1))
        writer.write(sent[::-1])
        await writer.drain()
        writer.write_eof()
        received.append(await receiving)
        writer.close()

    received: list[bytes] = []

    async def story(guest: Guest) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", await served(guest, greet))
        writer.write(sent)
        writer.write_eof()
        await asyncio.sleep(0.3)  # nobody reads yet: it must not stand in the other direction's way
        assert await reader.read() == sent[::-1]
        writer.close()
        while not received:
            await asyncio.sleep(0.01)
        assert received == [sent]

    init.play(story)


def test_a_side_that_does_not_read_stops_the_other(init: PlainInit) -> None:
    written = 0

    async def flood(reader: StreamReader, writer: StreamWriter) -> None:
        nonlocal written
        while True:
            writer.write(bytes(1 << 16))
            await writer.drain()
            written += 1 << 16

    async def story(guest: Guest) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", await served(guest, flood), limit=1 << 12)
        last = -1
        while written != last:
            last = written
            await asyncio.sleep(0.5)
        assert 0 < written < 24 * MIB
        assert (await guest.run("beside", Command(argv=("echo", "beside")))).stdout == b"beside\n"
        writer.close()

    init.play(story)


def test_no_more_are_carried_at_once_than_allowed_and_the_rest_waits(init: PlainInit) -> None:
    alive, most, done = 0, 0, 0

    async def stay(reader: StreamReader, writer: StreamWriter) -> None:
        nonlocal alive, most, done
        alive += 1
        most = max(most, alive)
        await reader.read()
        alive -= 1
        done += 1
        writer.close()

    async def story(guest: Guest) -> None:
        port = await served(guest, stay)
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        while alive < guest.loopback.max_connections:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        for _, writer in clients:
            writer.close()
        while done < 40:
            await asyncio.sleep(0.02)
        assert most == guest.loopback.max_connections
        while (await guest.jobs()) != []:  # nothing is left of them in init
            await asyncio.sleep(0.05)

    init.play(story)


def test_what_the_host_ends_is_ended_inside_though_nobody_there_closes(init: PlainInit) -> None:
    async def refuse(reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(b"no")
        writer.close()

    async def story(guest: Guest) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", await served(guest, refuse))
        assert await reader.read() == b"no"
        async with asyncio.timeout(20):
            while (await guest.jobs()) != []:
                await asyncio.sleep(0.1)
        writer.close()

    init.play(story)


def test_questions_are_answered_one_by_one_and_silence_is_an_answer(init: PlainInit) -> None:
    async def answer(question: bytes) -> bytes | None:
        return None if question == b"quiet" else question[::-1]

    async def story(guest: Guest) -> None:
        port = free_port(socket.SOCK_DGRAM)
        await guest.loopback.answer("127.0.0.1", port, answer)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            asker.setblocking(False)
            asker.connect(("127.0.0.1", port))
            loop = asyncio.get_running_loop()
            for text in (b"quiet", b"abc", b"x" * 2000, b"def"):
                asker.send(text)
            assert sorted([(await loop.sock_recv(asker, 4096)) for _ in range(3)]) == [b"cba", b"fed", b"x" * 512]

    init.play(story)


def test_a_new_client_finds_no_listener_and_no_connection_of_the_former_one(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        port = await served(guest, echo)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        later = await init.guest()
        assert await reader.read() == b""
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        await served(later, echo, port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"b")
        assert await reader.readexactly(1) == b"b"
        writer.close()
        await later.close()

    init.play(story)


def test_an_init_that_stands_still_holds_up_nobody_who_leaves(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        port = await served(guest, echo)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        init.process.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(5):
                await guest.loopback.close()
                await guest.close()
        finally:
            init.process.send_signal(signal.SIGCONT)
        writer.close()

    init.play(story)


@pytest.mark.parametrize(
    ("host", "port"),
    [("10.9.8.7", 80), ("fd00::1", 80), ("localhost", 80), ("127.0.0.1", 0), ("127.0.0.1", 70000), ("", 1)],
)
def test_init_listens_at_no_address_that_is_not_its_machines(init: PlainInit, host: str, port: int) -> None:
    async def story(guest: Guest) -> None:
        with pytest.raises(OSError, match="init cannot listen"):
            await guest.loopback.listen(host, port, lambda *_: None)

    init.play(story)


def test_listeners_are_bounded(init: PlainInit) -> None:
    async def listen_at_many(guest: Guest) -> None:
        for number in range(200):
            await guest.loopback.listen(f"127.3.0.{number}", 41000, lambda *_: None)

    async def story(guest: Guest) -> None:
        with pytest.raises(OSError, match="too many listeners"):
            await listen_at_many(guest)

    init.play(story)
