"""Init under AddressSanitizer, fed with calls that no client of ours would make; it must go on and stay sound.

It runs under a user id that owns nothing: the calls of a fuzzer are not chosen with care.
"""

import asyncio
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from benthic.sandbox.errors import StartFailed
from benthic.sandbox.guest import Guest, build_init
from benthic.sandbox.guest.frames import Frame, FrameDecoder, FrameError, encode_frame, key_of
from benthic.sandbox.records import Command
from tests.sandbox.guest.plain_init import PlainInit

UID = 54_321
SANITIZE = (
    *("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)
OPS = (
    "hello",
    "configure",
    "start",
    "wait",
    "follow",
    "unfollow",
    "kept",
    "feed",
    "signal",
    "resize",
    "jobs",
    "forget",
    "listen",
    "reply",
)
"""Not `reseed`, which sets the clock of this machine, nor `shutdown`."""
ARGVS = (
    ["true"],
    ["no-such-program"],
    ["sh", "-c", "echo out; echo err >&2; exit 3"],
    ["sh", "-c", "sleep 0.05 & cat"],
    ["sh", "-c", "seq 1 50000"],
    ["sh", "-c", "setsid sleep 0.2 & yes"],
    ["cat"],
    [],
    [""],
    ["x" * 5000],
)
NUMBERS = ("stdout", "stderr", "window", "start", "stream", "offset", "signal", "rows", "is_fresh", "quiet_ms")
FILE_CALLS = {
    "read": 3,
    "write": 4,
    "stat": 1,
    "list": 2,
    "remove": 2,
    "make_folder": 2,
    "pack": 3,
    "unpack": 3,
    "x": 2,
}
"""With how many arguments."""


@pytest.fixture
def sanitized() -> Iterator[PlainInit]:
    if os.getuid() != 0:
        pytest.skip("needs root, to run under a user id that owns nothing")
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    try:
        program = build_init(compiler="gcc", flags=SANITIZE)
    except StartFailed as error:
        if "sanitize" in str(error) or "asan" in str(error):
            pytest.skip("gcc has no sanitizers here")
        raise
    # a leak check at the end would need to trace init, which init forbids
    started = PlainInit(program=program, uid=UID, env={"ASAN_OPTIONS": "detect_leaks=0"})
    yield started
    started.close()


class Fuzzer:
    """Draws frames: mostly well-formed calls with values that make little sense."""

    def __init__(self, seed: int, work: str) -> None:
        self.random = random.Random(seed)
        self.work = work
        self.key = 0
        self.next_id = 1

    def number(self) -> Any:
        edges = (-1, 0, 1, 2, 3, 100, 1000, 65_536, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 40, 10**17, -(10**17))
        return self.random.choice((*edges, "text", None, True, [1, "a"], []))

    def path(self) -> str:
        return self.work + self.random.choice(
            ("", "/", "/a", "/a/b/c", "/../work/a", "/" + "x" * 300, "/a\nb", "//a//")
        )

    def argv(self, is_file_call: bool) -> list[Any]:
        if not is_file_call:
            return self.random.choice(ARGVS)
        name = self.random.choice((*FILE_CALLS, "connect"))
        first = str(self.random.choice((1, 22, -5, 70_000))) if name == "connect" else self.path()
        rest = [str(self.random.choice((-1, 0, 1, 9, 1 << 20, "atomic", "replace", "x"))) for _ in range(4)]
        num_rest = FILE_CALLS.get(name, 1) - 1 if self.random.random() < 0.8 else self.random.randrange(5)
        return [name, first, *rest[:num_rest]]

    def fields(self, op: str) -> dict[str, Any]:
        chance = self.random.random
        fields: dict[str, Any] = {"op": op, "id": self.next_id, "job": f"j{self.random.randrange(8)}"}
        self.next_id += 1
        if op == "hello":
            fields |= {"nonce": f"{self.random.random()}", "client": self.random.choice(("a", "b", "c" * 99))}
        elif op == "configure":
            env = ["PATH=/usr/bin:/bin", "novalue", "", "=", "A=1", "A=2"][: self.random.randrange(7)]
            fields |= {"uid": UID, "gid": UID, "env": env, "cwd": self.random.choice((self.work, "/", "", "/none"))}
            fields |= {"rlimits": [], "output_bytes": self.random.choice((0, 1, 2, 1000, 1 << 20))}
        elif op == "start":
            is_file_call = chance() < 0.5
            fields |= {"argv": self.argv(is_file_call), "is_file_call": is_file_call, "timeout_ms": 300}
            fields |= {"rows": self.random.choice((0, 0, 0, 1, 24, 70_000)), "is_root": chance() < 0.1}
            fields |= {"input_ends": chance() < 0.7, "holds_output": chance() < 0.3, "env": ["A=3", "B"]}
            fields |= {"output_bytes": self.random.choice((0, 1, 7, 1000, 1 << 20))}
            if chance() < 0.1:
                fields |= {"listener": self.random.choice(("127.7.0.1 40111", "", "x"))}
        elif op in ("listen", "reply"):
            host = self.random.choice(("127.7.0.1", "127.7.0.2", "::1", "10.1.1.1", "", "x" * 300))
            port = self.random.choice((40_111, 40_112, 0, -1, 1 << 40))
            fields |= {"host": host, "port": port, "is_datagram": chance() < 0.3, "listener": f"{host} {port}"}
            fields |= {"address": self.number()}
        for name in (
            "stdout",
            "stderr",
            "window",
            "start",
            "stream",
            "offset",
            "signal",
            "rows",
            "is_fresh",
            "quiet_ms",
        ):
            if chance() < 0.5 and (op != "start" or name == "quiet_ms"):
                fields[name] = self.number()
        if op == "follow" and chance() < 0.7:
            fields |= {"window": 100_000, "is_fresh": chance() < 0.5}
        if chance() < 0.02:
            del fields[self.random.choice(sorted(fields))]
        return fields

    def frame(self, op: str) -> bytes:
        fields = self.fields(op)
        body = (
            self.random.randbytes(self.random.choice((0, 0, 1, 512, 70_000)))
            if op in ("start", "feed", "reply")
            else b""
        )
        stream = encode_frame(Frame(fields, body), 0 if op == "hello" else self.key)
        if op == "hello" and "nonce" in fields:
            self.key = key_of(fields["nonce"])
        return stream

    def damaged(self, stream: bytes) -> bytes:
        place = self.random.randrange(len(stream))
        match self.random.randrange(4):
            case 0:
                return stream[:place]
            case 1:
                return stream[place:]
            case 2:
                return self.random.randbytes(place)
            case _:
                return stream[:place] + bytes([stream[place] ^ 1 << self.random.randrange(8)]) + stream[place + 1 :]


class Listener:
    """Takes what init says; between one greeting and the next it must be whole frames."""

    def __init__(self) -> None:
        self.decoder: FrameDecoder | None = FrameDecoder()
        self.kinds: Counter[str] = Counter()

    def hear(self, data: bytes, num_greetings: int) -> None:
        if self.decoder is None:
            return
        self.decoder.feed(data)
        try:
            while (frame := self.decoder.take()) is not None:
                self.kinds[next(iter(frame.header), "")] += 1
                if "hello" in frame.header:
                    self.decoder.is_greeted, self.decoder.key = True, key_of(frame.header["hello"])
        except FrameError:
            assert num_greetings > 1, "init broke a frame"
            self.decoder = None  # the greeting of another session


async def visit(init: PlainInit, fuzzer: Fuzzer) -> Counter[str]:
    """One connection with some calls, left at a moment of no importance."""
    reader, writer = await init.connect()
    listener, num_greetings = Listener(), 0
    for number in range(fuzzer.random.randrange(1, 40)):
        op = "hello" if number == 0 and fuzzer.random.random() < 0.9 else fuzzer.random.choice(OPS)
        if op == "hello" and fuzzer.random.random() < 0.8 and number:
            continue
        stream = fuzzer.frame(op)
        num_greetings += op == "hello"
        if fuzzer.random.random() < 0.01:
            stream, num_greetings = fuzzer.damaged(stream), 2
        writer.write(stream)
        try:
            await asyncio.wait_for(writer.drain(), 5)
            if fuzzer.random.random() < 0.6:
                listener.hear(await asyncio.wait_for(reader.read(1 << 17), 0.02), num_greetings)
        except TimeoutError:
            continue
        except ConnectionError:
            break
    writer.transport.abort()
    return listener.kinds


def fuzz(init: PlainInit, seed: int, visits: int) -> None:
    async def whole() -> None:
        fuzzer = Fuzzer(seed, str(init.work))
        kinds: Counter[str] = Counter()
        for _ in range(visits):
            kinds += await visit(init, fuzzer)
        assert kinds["id"] > visits, "the fuzzer still reaches what matters"
        guest = await Guest.attach(init.connect)
        await guest.configure(init.setup)
        for info in await guest.jobs():
            await guest.forget(info.job)
        assert (await guest.run("after", Command(shell="echo on", timeout_s=20))).stdout == b"on\n"
        await guest.shutdown()

    asyncio.run(asyncio.wait_for(whole(), 280))
    returncode = init.process.wait(20)
    assert returncode == 0, (init.folder / "stderr").read_text()[-4000:]
    assert "ERROR" not in (init.folder / "stderr").read_text()


@pytest.mark.parametrize("seed", range(3))
def test_init_stays_sound_whatever_it_is_asked(sanitized: PlainInit, seed: int) -> None:
    fuzz(sanitized, seed, 40)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 130))
def test_init_stays_sound_for_a_long_time(sanitized: PlainInit, seed: int) -> None:
    fuzz(sanitized, seed, 400)
