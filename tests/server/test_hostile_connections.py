"""Real sockets that stall, trickle, leave, crowd and lie: each costs its owner, and nobody else."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from benthic.server.connection import MAX_AHEAD_BYTES
from benthic.text.tokenizer import EOS

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "thinking": {"type": "disabled"}}
ENDLESS = {**ASK, "ignore_eos": True, "max_tokens": 400}


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


def post(path: str, body: dict[str, Any], *headers: str) -> bytes:
    raw = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(raw)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + raw


def address(up: Any) -> tuple[str, int]:
    host, port = up.url.removeprefix("http://").split(":")
    return host, int(port)


@asynccontextmanager
async def connected(up: Any) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*address(up))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def is_cut(reader: asyncio.StreamReader, seconds: float = 10.0) -> bytes:
    """What still comes before the connection ends, which it must."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), seconds)
    return b""


async def serves(up: Any) -> None:
    answer = await up.client.post(CHAT, json={**ASK, "max_tokens": 1})
    assert answer.status_code == 200, answer.text
    assert await until(lambda: up.service.channel.num_open == 0 and up.service.intake.held_bytes == 0)


@pytest.mark.parametrize("sent", [b"", b"G", b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx: "])
async def test_a_header_that_does_not_arrive_costs_its_connection(live: Any, sent: bytes) -> None:
    with live("a" + EOS, header_timeout_s=0.3) as up:
        async with connected(up) as (reader, writer):
            writer.write(sent)
            assert await is_cut(reader) == b""
        await serves(up)


async def test_a_header_that_trickles_is_late_too_also_after_a_good_request(live: Any) -> None:
    with live("a" + EOS, header_timeout_s=0.4) as up:
        async with connected(up) as (reader, writer):
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
            began = time.monotonic()
            with contextlib.suppress(ConnectionError):
                for byte in b"GET /health HTTP/1.1\r\nx: " + b"y" * 1000:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.02)
                    if reader.at_eof():
                        break
            await is_cut(reader)
            assert time.monotonic() - began < 5


async def test_a_body_that_trickles_is_refused_when_its_time_is_over(live: Any) -> None:
    with live("a" + EOS, body_timeout_s=0.4) as up:
        async with connected(up) as (reader, writer):
            writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n".encode())
            for _ in range(100):
                writer.write(b" ")
                await asyncio.sleep(0.05)
                if reader.at_eof() or reader._buffer:  # type: ignore[attr-defined]
                    break
            assert (await is_cut(reader)).startswith(b"HTTP/1.1 408 ")
        await serves(up)


async def test_an_idle_connection_is_closed_in_the_end(live: Any) -> None:
    with live("a" + EOS, idle_timeout_s=0.3) as up:
        async with connected(up) as (reader, writer):
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await is_cut(reader)).startswith(b"HTTP/1.1 200")


def deaf_socket(up: Any) -> socket.socket:
    """A client who never reads, with small buffers on both sides."""
    up.server._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)  # accepted sockets inherit it
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.connect(address(up))
    return deaf


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_never_reads_is_cut_off_and_its_sequences_end(live: Any, stream: bool) -> None:
    with live("word " * 50, write_timeout_s=0.5, context_len=200_000) as up:
        deaf = deaf_socket(up)
        wishes = {"n": 2, "logprobs": True, "top_logprobs": 20, "max_tokens": 2000 if stream else 150}
        deaf.sendall(post(CHAT, {**ENDLESS, **wishes, "stream": stream}))
        assert await until(lambda: up.service.channel.num_open > 0)
        assert await until(lambda: not up.server.server_state.connections, 60)
        assert await until(lambda: up.service.channel.num_open == 0 and not up.engine.has_work())
        deaf.close()
        await serves(up)


async def test_a_slow_reader_that_does_read_gets_all_of_it(live: Any) -> None:
    with live("word " * 50, write_timeout_s=0.4, context_len=200_000) as up:
        body = {**ENDLESS, "n": 2, "logprobs": True, "top_logprobs": 20, "max_tokens": 150, "stream": True}
        slow = deaf_socket(up)
        slow.sendall(post(CHAT, body, "connection: close"))
        got = bytearray()
        while piece := await asyncio.to_thread(slow.recv, 16384):
            got += piece
            await asyncio.sleep(0.005)
        assert b"data: [DONE]\n\n" in got
        assert got.count(b'"finish_reason":"length"') == 2
        slow.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_sent_requests_ahead_and_left_is_noticed(live: Any, stream: bool) -> None:
    with live("one two three", step_s=0.02) as up:
        async with connected(up) as (_, writer):
            writer.write(post(CHAT, {**ENDLESS, "stream": stream}) + post(CHAT, ENDLESS) * 3)
            assert await until(lambda: up.service.channel.num_open == 1)
            for _ in range(3):
                await asyncio.sleep(0.05)
                writer.write(post(CHAT, ENDLESS))
            await asyncio.sleep(0.05)
        assert await until(lambda: up.service.channel.num_open == 0 and not up.engine.has_work(), 2)
        assert len(up.engine.requests) == 1
        await serves(up)


async def test_requests_sent_ahead_are_answered_in_turn(live: Any) -> None:
    with live("one two" + EOS) as up:
        async with connected(up) as (reader, writer):
            writer.write(post(CHAT, ASK) * 5)
            for _ in range(5):
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
                assert head.startswith(b"HTTP/1.1 200")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                assert b'"one two"' in await reader.readexactly(length)


async def test_more_sent_ahead_than_a_server_keeps_ends_the_connection(live: Any) -> None:
    with live("one two three", step_s=0.02) as up:
        async with connected(up) as (reader, writer):
            writer.write(post(CHAT, ENDLESS) + b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * (MAX_AHEAD_BYTES // 20))
            await is_cut(reader)
        assert await until(lambda: up.service.channel.num_open == 0 and not up.engine.has_work())
        await serves(up)


@pytest.mark.parametrize("behind", [b"\r\n", b"\x00\x01garbage", b"GET / HTTP/9.9\r\n\r\n"])
@pytest.mark.parametrize("header", ["connection: close", "x: y"])
async def test_what_stands_behind_a_whole_request_does_not_harm_its_answer(
    live: Any, behind: bytes, header: str
) -> None:
    with live("one two" + EOS, step_s=0.02) as up:
        async with connected(up) as (reader, writer):
            writer.write(post(CHAT, ASK, header) + behind)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            assert head.startswith(b"HTTP/1.1 200")
        await serves(up)


async def test_garbage_gets_an_error_object_and_fills_no_log(live: Any, caplog: pytest.LogCaptureFixture) -> None:
    with live("a" + EOS) as up:
        for _ in range(5):
            async with connected(up) as (reader, writer):
                writer.write(b"\x16\x03\x01\x02\x00\r\n\r\n")
                answer = await is_cut(reader)
                assert answer.startswith(b"HTTP/1.1 400 ")
                assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"
        metrics = (await up.client.get("/metrics")).text
        assert 'benthic_requests_total{route="none",status="400"} 5.0' in metrics
        assert not caplog.records


async def test_a_refusal_ends_the_sending_of_a_body_that_nobody_reads(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benthic.server.connection.LINGER_S", 0.3)
    with live("a" + EOS, max_body_bytes=10_000) as up:
        async with connected(up) as (reader, writer):
            writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n".encode())
            assert (await asyncio.wait_for(reader.readuntil(b"}}"), 5)).startswith(b"HTTP/1.1 413")
            with contextlib.suppress(ConnectionError):
                for _ in range(100):
                    writer.write(b"x" * 1000)
                    await writer.drain()
                    await asyncio.sleep(0.02)
            assert reader.at_eof() or reader.exception() is not None
        await serves(up)


async def test_a_refused_body_that_is_small_leaves_its_connection_in_use(live: Any) -> None:
    with live("a" + EOS, max_body_bytes=1000) as up:
        async with connected(up) as (reader, writer):
            writer.write(post(CHAT, {"x": "y" * 5000}))
            assert (await asyncio.wait_for(reader.readuntil(b"}}"), 5)).startswith(b"HTTP/1.1 413")
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b"HTTP/1.1 200" in await asyncio.wait_for(reader.readuntil(b"}"), 5)


async def test_idle_connections_make_room_for_new_ones(live: Any) -> None:
    with live("a" + EOS, max_connections=8, step_s=0.01) as up:
        idle = [await asyncio.open_connection(*address(up)) for _ in range(40)]
        assert await until(lambda: len(up.server.server_state.connections) <= 8)
        await serves(up)
        for _, writer in idle:
            writer.transport.abort()


async def test_busy_connections_keep_their_place_and_others_are_told(live: Any) -> None:
    with live("one two three", max_connections=4, step_s=0.02) as up:
        busy = [await asyncio.open_connection(*address(up)) for _ in range(4)]
        for _, writer in busy:
            writer.write(post(CHAT, {**ENDLESS, "stream": True}))
        assert await until(lambda: up.service.channel.num_open == 4)
        for _ in range(3):
            async with connected(up) as (reader, writer):
                writer.write(post(CHAT, ASK))
                answer = await is_cut(reader)
                assert answer.startswith(b"HTTP/1.1 503 ")
                assert b"retry-after: 1\r\n" in answer
                assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_connections"
        assert up.service.channel.num_open == 4
        for _, writer in busy:
            writer.transport.abort()
        assert await until(lambda: up.service.channel.num_open == 0)
        await serves(up)
