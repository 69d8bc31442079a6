"""The load generator against a client that answers by script, and the HTTP client against a server that cuts bytes."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from benthic.bench.client import HttpClient, Reply
from benthic.bench.datasets import DatasetConfig, make_sessions
from benthic.bench.http_stream import Address
from benthic.bench.load import LoadConfig, arrival_times, run_load
from benthic.bench.workload import Branch, Session, Turn, num_turns
from benthic.errors import BenchError, ConfigError


class ScriptedClient:
    """Answers after a while, and remembers what it was asked and how many requests were open."""

    def __init__(self, *, seconds: float = 0.001, fails_at: Sequence[int] = ()) -> None:
        self.prompts: list[tuple[int, ...]] = []
        self.most_open = 0
        self._open = 0
        self._seconds = seconds
        self._fails_at = fails_at

    async def complete(self, prompt_ids: Sequence[int], output_len: int) -> Reply:
        number = len(self.prompts)
        self.prompts.append(tuple(prompt_ids))
        self._open += 1
        self.most_open = max(self.most_open, self._open)
        await asyncio.sleep(self._seconds)
        self._open -= 1
        if number in self._fails_at:
            return Reply(error="scripted failure")
        now = asyncio.get_running_loop().time()
        return Reply(times_s=[now, now], token_ids=[3] * output_len, output_len=output_len, finish_reason="length")


def sessions(**changes: object) -> list[Session]:
    config = DatasetConfig(num_sessions=9, num_turns=3, prefix_len=5, input_len=4, output_len=2, **changes)  # type: ignore[arg-type]
    return make_sessions(config)


def test_every_turn_is_sent_once_with_the_replies_before_it() -> None:
    load = sessions(dataset="multi-turn")
    client = ScriptedClient()
    run = asyncio.run(run_load(load, client, LoadConfig()))
    assert len(run.records) == len(client.prompts) == 27
    assert all(record.is_ok for record in run.records)
    last = max(client.prompts, key=len)
    assert last.count(3) == 4
    assert len(last) == 5 + 3 * 4 + 2 * 2


def test_no_more_requests_are_open_than_allowed_and_waiting_counts_as_latency() -> None:
    client = ScriptedClient(seconds=0.01)
    run = asyncio.run(run_load(sessions(dataset="random"), client, LoadConfig(max_concurrency=2)))
    assert client.most_open == 2
    assert max(record.e2e_s or 0 for record in run.records) > 0.03
    free = ScriptedClient(seconds=0.01)
    asyncio.run(run_load(sessions(dataset="random"), free, LoadConfig()))
    assert free.most_open == 9


def test_a_failed_turn_ends_its_session_and_nothing_is_left_unrecorded() -> None:
    turns = tuple(Turn(new_ids=(1,), reply_ids=(2,)) for _ in range(3))
    load = [
        Session(session_id="p", turns=turns),
        Session(session_id="b", turns=turns, branch=Branch(session_id="p", num_turns=2)),
    ]
    run = asyncio.run(run_load(load, ScriptedClient(fails_at=[1]), LoadConfig()))
    assert [record.is_ok for record in run.records].count(True) == 1
    assert len(run.records) == num_turns(load) == 6
    assert [record.error for record in run.records[1:3]] == ["scripted failure", "an earlier turn failed"]


def test_arrivals_keep_their_rate_and_their_seed() -> None:
    times = arrival_times(2000, LoadConfig(rate=50.0, seed=4))
    assert times == arrival_times(2000, LoadConfig(rate=50.0, seed=4))
    assert times == sorted(times)
    assert times[-1] == pytest.approx(2000 / 50, rel=0.1)
    assert set(arrival_times(5, LoadConfig(rate=math.inf))) == {0.0}


@pytest.mark.parametrize(("field", "value"), [("rate", 0.0), ("rate", math.nan), ("max_concurrency", 0)])
def test_loads_that_never_arrive_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} is"):
        LoadConfig(**{field: value})  # type: ignore[arg-type]


CHUNKS = [
    {"choices": [{"index": 0, "text": "a\u00e9", "token_ids": [4, 5], "finish_reason": None}]},
    {"choices": [{"index": 0, "text": "", "token_ids": [6], "finish_reason": "length"}]},
    {
        "choices": [],
        "usage": {
            "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 128},
            "completion_tokens_details": {"accepted_prediction_tokens": 1},
        },
    },
]
FRAMES = "".join(f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n" for chunk in CHUNKS) + ": keep-alive\n\n"
DONE = "data: [DONE]\n\n"


@asynccontextmanager
async def server(status: str, body: bytes, piece: int, *, breaks: bool = False) -> AsyncIterator[str]:
    """An HTTP server that sends its body in chunks of so many bytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-le"))
        await reader.readexactly(length)
        writer.write(f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for start in range(0, len(body), piece):
            part = body[start : start + piece]
            writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            await writer.drain()
        if not breaks:
            writer.write(b"0\r\n\r\n")
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"


async def completed(status: str, text: str, piece: int, *, breaks: bool = False) -> Reply:
    async with server(status, text.encode(), piece, breaks=breaks) as url:
        return await HttpClient(url).complete([1, 2], 3)


@pytest.mark.parametrize("piece", [1, 2, 7, 64, 100_000])
def test_a_stream_is_read_the_same_however_its_bytes_are_cut(piece: int) -> None:
    reply = asyncio.run(completed("200 OK", FRAMES + DONE, piece))
    assert reply.error is None
    assert reply.token_ids == [4, 5, 6]
    assert (reply.output_len, reply.cached_len, reply.accepted_len) == (3, 128, 1)
    assert len(reply.times_s) == 2
    assert reply.finish_reason == "length"


@pytest.mark.parametrize(
    ("status", "text", "breaks", "reason"),
    [
        ("503 Busy", '{"error": {"message": "later"}}', False, "answered with 503.*later"),
        ("200 OK", FRAMES, False, r"ended without \[DONE\]"),
        ("200 OK", FRAMES, True, "connection broke off"),
        ("200 OK", 'data: {"error": {"message": "no memory"}}\n\n', False, "no memory"),
        ("200 OK", "data: <html>\n\n", False, "Expecting value"),
    ],
)
def test_whatever_goes_wrong_is_in_the_reply(status: str, text: str, breaks: bool, reason: str) -> None:
    reply = asyncio.run(completed(status, text, 50, breaks=breaks))
    assert reply.error is not None
    with pytest.raises(BenchError, match=reason):
        raise BenchError(reply.error)


def test_an_absent_server_is_told_with_its_address() -> None:
    with pytest.raises(BenchError, match=r"no server answers at 127\.0\.0\.1:9"):
        asyncio.run(HttpClient("http://127.0.0.1:9").describe())


def test_addresses_are_read_with_and_without_their_version() -> None:
    assert Address.of("http://host:81/v1/") == Address.of("http://host:81")
    assert Address.of("https://host/base").port == 443
    with pytest.raises(ConfigError, match="must be like"):
        Address.of("host:80")
