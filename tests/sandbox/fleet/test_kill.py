"""Client, agent and gateway are killed with -9 at random points of a trajectory: every command ran exactly once.

The proof is a file inside the sandbox to which each command adds its own line. The client's program is started again
from its beginning each time, as a preempted trainer would be, and must be told the same as before.
"""

import asyncio
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benthic.sandbox import Sandbox
from benthic.sandbox.fleet.client import RemoteHost
from benthic.sandbox.fleet.launch import fleet_token
from tests.sandbox.fleet.part import Part, sweep
from tests.sandbox.fleet.processes import BIG_EVERY, COUNTER, READ_EVERY, gateway_url
from tests.sandbox.kinds import require_kind

VICTIMS = ("client", "agent", "gateway")
STANDSTILL_S = 120.0

pytestmark = pytest.mark.skipif(
    shutil.which("musl-gcc") is None and shutil.which("cc") is None, reason="no C compiler: apt-get install musl-tools"
)


@dataclass
class Fleet:
    """A gateway and one agent as processes, and the kind of sandbox that is made there."""

    root: Path
    kind: str

    def __post_init__(self) -> None:
        fleet_token(self.root / "token")
        gateway = gateway_url(self.root)
        self.parts = {
            "gateway": Part(self.root, "gateway", gateway, "60"),
            "agent": Part(self.root, "agent", "h1", f"unix:{self.root}/h1.sock", gateway, "", self.kind),
        }

    def last_counter(self, sandbox_id: str) -> list[str]:
        """The lines of the file, by a call that no log has yet, and the sandbox's last."""

        async def read() -> str:
            async with RemoteHost(gateway_url(self.root), token=fleet_token(self.root / "token")) as host:
                sandbox = await Sandbox.attach(sandbox_id, host=host)
                said = (await sandbox.exec(f"cat {COUNTER}")).text
                await sandbox.close()
                return said

        return asyncio.run(read()).split()


@pytest.fixture
def fleet(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    kind = request.node.callspec.params["kind"]
    if kind != "bare":
        require_kind(kind)
    fleet = Fleet(tmp_path, kind)
    try:
        for part in fleet.parts.values():
            part.start()
        yield fleet
    finally:
        for part in fleet.parts.values():
            part.kill()
        sweep(tmp_path / "h1", kind=kind)


def transcripts(root: Path, key: str) -> list[list[str]]:
    paths = sorted(root.glob(f"{key}.*"), key=lambda path: int(path.suffix[1:]))
    return [path.read_text().splitlines() for path in paths]


def expected(num_calls: int) -> list[str]:
    """What an undisturbed client is told."""
    lines, num_lines, num_bytes = [], 0, 0
    for seq in range(num_calls):
        if seq % READ_EVERY == READ_EVERY - 1:
            lines.append(f"{seq} read {num_bytes}")
            continue
        num_lines, num_bytes = num_lines + 1, num_bytes + len(f"{seq}\n")
        printed = len(f"{num_lines}\n") + (300_000 if seq % BIG_EVERY == 0 else 0)
        lines.append(f"{seq} {num_lines} {printed}")
    return lines


def strike(parts: dict[str, Part], rng: random.Random) -> int:
    """Kills one to three of them a moment from now, and starts them again; returns how many."""
    time.sleep(rng.uniform(0.0, 0.06))
    victims = [parts[name] for name in rng.sample(VICTIMS, k=rng.choice((1, 1, 1, 2, 3)))]
    for victim in victims:
        victim.kill()
    time.sleep(rng.choice((0.0, 0.0, 0.3)))
    for victim in victims:
        victim.start()
    return len(victims)


def play(fleet: Fleet, key: str, num_calls: int, rng: random.Random) -> int:
    """One trajectory with kills; returns how many there were."""
    root = fleet.root
    client = Part(root, "client", key, str(num_calls), fleet.kind)
    parts = {**fleet.parts, "client": client}
    client.start()
    points = sorted(rng.sample(range(num_calls), k=max(3, num_calls // 25)))
    num_kills, most, moved_s = 0, 0, time.monotonic()
    try:
        while client.returncode is None:
            told = [len(lines) for lines in transcripts(root, key)]
            seen = max(told, default=0) - 1
            if sum(told) > most:
                most, moved_s = sum(told), time.monotonic()
            assert time.monotonic() < moved_s + STANDSTILL_S, (key, points, told)
            if points and seen >= points[0]:
                points.pop(0)
                num_kills += strike(parts, rng)
            time.sleep(0.005)
    finally:
        client.kill()
    assert client.returncode == 0, client.log.read_text()[-3000:]
    return num_kills


def check(fleet: Fleet, key: str, num_calls: int) -> None:
    told = transcripts(fleet.root, key)
    sandbox_id = told[-1][0].split()[1]
    whole = [f"sandbox {sandbox_id}", *expected(num_calls)]
    assert told[-1] == whole
    for lines in told[:-1]:
        cut = [line for line, other in zip(lines, whole, strict=False) if line == other]
        assert len(cut) >= len(lines) - 1, "an earlier client was told something else"  # its last line may be cut
    commands = [seq for seq in range(num_calls) if seq % READ_EVERY != READ_EVERY - 1]
    assert fleet.last_counter(sandbox_id) == [str(seq) for seq in commands], (
        "a command ran twice, or never, or out of turn"
    )


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("kind", "num_rounds", "num_calls"),
    [
        pytest.param("bare", 1, 60, id="bare"),
        pytest.param("function", 1, 40, id="function"),
        pytest.param("bare", 100, 200, id="bare, all rounds", marks=pytest.mark.nightly),
        pytest.param("function", 10, 200, id="function, all rounds", marks=pytest.mark.nightly),
        pytest.param("container", 10, 200, id="container, all rounds", marks=pytest.mark.nightly),
    ],
)
def test_every_command_runs_exactly_once_whoever_is_killed_and_whenever(
    fleet: Fleet, seed: int, kind: str, num_rounds: int, num_calls: int
) -> None:
    rng = random.Random(seed)
    num_kills = 0
    for index in range(num_rounds):
        num_kills += play(fleet, f"round-{index}", num_calls, rng)
        check(fleet, f"round-{index}", num_calls)
        print(f"{kind}, seed {seed}: {index + 1} rounds of {num_calls} calls, {num_kills} kills", flush=True)
    assert num_kills >= 3 * num_rounds
