"""Clients that do what clients must not do, each on a raw socket, and clients that only want their answer."""

import asyncio
import contextlib
import json
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
_RETRIED = (429, 503)


@dataclass
class Attacker:
    """One hostile client; `act` does one thing, chosen by its own dice, and leaves no socket behind.

    `patience_s` is how long it stalls where it stalls.
    """

    host: str
    port: int
    dice: random.Random
    patience_s: float
    context_len: int
    done: Counter[str] = field(default_factory=Counter)

    async def act(self) -> None:
        """One misdeed."""
        name, deed = self.dice.choice(DEEDS)
        self.done[name] += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(self.host, self.port)
            try:
                await asyncio.wait_for(deed(self, reader, writer), 60)
            finally:
                writer.transport.abort()

    def wish(self, **changes: Any) -> bytes:
        """A request that would be served if its client stayed."""
        path = self.dice.choice(PATHS)
        words = "".join(self.dice.choice("abcdefgh ") for _ in range(self.dice.randrange(1, 200)))
        prompt: dict[str, Any] = {"messages": [{"role": "user", "content": words}]}
        if path == "/v1/completions":
            prompt = {"prompt": words}
        if path == "/v1/responses":
            prompt = {"input": words}
        limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
        body = {"model": "tiny", **prompt, limit: self.dice.randrange(20, 200), "ignore_eos": True, **changes}
        return post(path, body)

    async def stall(self) -> None:
        """Nothing, for a while."""
        await asyncio.sleep(self.dice.uniform(0, self.patience_s))


def post(path: str, body: object) -> bytes:
    """A whole request."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


_Deed = Callable[[Attacker, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def leave_in_mid_stream(client: Attacker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(client.wish(stream=True))
    for _ in range(client.dice.randrange(1, 12)):
        if not await reader.read(300):
            return


async def leave_before_the_answer(client: Attacker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(client.wish(stream=client.dice.random() < 0.5))
    await writer.drain()
    await client.stall()


async def never_read(client: Attacker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.pause_reading()
    writer.write(client.wish(stream=True))
    await client.stall()


async def send_ahead_and_leave(client: Attacker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(client.wish() + client.wish(stream=True) + b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    await client.stall()


async def close_the_sending_half(client: Attacker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(client.wish())
    writer.write_eof()
    await reader.read()


async def send_half_a_header(client: Attacker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-le")
    await client.stall()


async def send_half_a_body(client: Attacker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    raw = client.wish()
    writer.write(raw[: -client.dice.randrange(1, 40)])
    await client.stall()


async def trickle(client: Attacker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for byte in client.wish()[:40]:
        if writer.transport.is_closing():
            return
        writer.write(bytes([byte]))
        await asyncio.sleep(client.patience_s / 40)


async def send_garbage(client: Attacker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(client.dice.randbytes(client.dice.randrange(1, 5000)) + b"\r\n\r\n")
    await client.stall()


async def send_bad_json(client: Attacker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    bad = (b"", b"{", b"[1]", b'{"messages": 7}', b"\xff", b'{"a":' * 3000, b'{"prompt": "\\ud800"}', b"NaN")
    writer.write(post(client.dice.choice(PATHS), client.dice.choice(bad)))
    assert_refused(await status_of(reader))


async def exceed_the_context(client: Attacker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(post("/v1/completions", {"model": "tiny", "prompt": [5] * (client.context_len + 3)}))
    assert_refused(await status_of(reader))


async def send_megabytes_of_text(client: Attacker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(client.wish(messages=[{"role": "user", "content": "7" * 1_000_000}], prompt="7" * 1_000_000))
    await client.stall()


async def announce_too_large_a_body(
    client: Attacker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n" + b"x" * 1000)
    assert_refused(await status_of(reader))
    await client.stall()


async def ask_for_nonsense(client: Attacker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    nonsense: tuple[dict[str, Any], ...] = (
        {"model": "gpt-9"},
        {"temperature": -3},
        {"n": 10_000},
        {"stop": [[]]},
        {"prompt": [-1], "messages": "hi", "input": 3},
        {"timeout_s": 0.01},
    )
    writer.write(client.wish(**client.dice.choice(nonsense)))
    assert_refused(await status_of(reader), also=(504, 200))  # a field of another protocol's is none of this one's


async def use_a_wrong_method(client: Attacker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"DELETE /v1/completions HTTP/1.1\r\nhost: x\r\n\r\n")
    assert_refused(await status_of(reader))


async def just_hold_on(client: Attacker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await client.stall()


DEEDS: tuple[tuple[str, _Deed], ...] = tuple(
    (deed.__name__, deed)
    for deed in (
        leave_in_mid_stream,
        leave_before_the_answer,
        never_read,
        send_ahead_and_leave,
        close_the_sending_half,
        send_half_a_header,
        send_half_a_body,
        trickle,
        send_garbage,
        send_bad_json,
        exceed_the_context,
        send_megabytes_of_text,
        announce_too_large_a_body,
        ask_for_nonsense,
        use_a_wrong_method,
        just_hold_on,
    )
)


async def status_of(reader: asyncio.StreamReader) -> int:
    """The status of an answer; 0 when the connection ends without one."""
    line = await reader.readline()
    return int(line.split()[1]) if line else 0


def assert_refused(status: int, also: tuple[int, ...] = ()) -> None:
    """A refusal, or no place, or no answer at all."""
    assert status == 0 or 400 <= status < 500 or status == 503 or status in also, status


def good_request(index: int) -> tuple[str, dict[str, Any]]:
    """What the good client of this number asks: another protocol, drawing and form of reply each."""
    seeded: dict[str, Any] = {"model": "tiny", "seed": index, "temperature": 0.8 if index % 3 else 0.0}
    asked = [{"role": "user", "content": f"What is {index} + 285?"}]
    path, body = (
        ("/v1/chat/completions", {"messages": asked, "max_tokens": 24, "logprobs": True, "top_logprobs": 3}),
        ("/v1/completions", {"prompt": f"{index} + 285 =", "max_tokens": 24, "logprobs": 3, "return_token_ids": True}),
        ("/v1/responses", {"input": f"What is {index} + 285?", "max_output_tokens": 24}),
        ("/v1/messages", {"messages": asked, "max_tokens": 24}),
    )[index % 4]
    return path, {**seeded, **body, "stream": index % 5 == 1}


async def good_answer(client: httpx.AsyncClient, index: int) -> tuple[str, int]:
    """The answer of a good client, without ids and times, and how often it was told to come back."""
    path, body = good_request(index)
    for told in range(2000):
        try:
            answer = await client.post(path, json=body)
        except httpx.TransportError:
            await asyncio.sleep(0.05)  # its idle connection had given up its place
            continue
        if answer.status_code in _RETRIED:
            await asyncio.sleep(float(answer.headers["retry-after"]) * 0.2)
            continue
        assert answer.status_code == 200, answer.text
        return _substance(answer.text), told
    raise AssertionError("never served")


def _substance(text: str) -> str:
    """Without what differs between any two answers: ids, times, and what the cache happened to hold."""
    text = re.sub(r"\b(chatcmpl|cmpl|resp|msg|rs|req|item|fc|call)[-_][0-9a-zA-Z_-]{8,}", r"\1", text)
    text = re.sub(r'"(created|created_at|completed_at)":\s*[0-9.]+', r'"\1":0', text)
    text = re.sub(r'"[a-z_]*(?:cache|cached)[a-z_]*":\s*[0-9]+', '"cache":0', text)
    text = re.sub(r'"input_tokens":\s*[0-9]+', '"input_tokens":0', text)  # in Messages, less what was cached
    return text.replace(": keep-alive\n\n", "").replace('event: ping\ndata: {"type":"ping"}\n\n', "")
