"""Client, agent and gateway are killed with -9 at random points of a trajectory: every command ran exactly once.

The proof is a file inside the sandbox to which each command adds its own line. The client's program is started again
from its beginning each time, as a preempted trainer would be, and must be told the same as before.
"""

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benthic.sandbox.fleet.launch import fleet_token
from tests.sandbox.fleet.part import Part, sweep
from tests.sandbox.fleet.processes import BIG_EVERY, COUNTER, READ_EVERY, gateway_url

VICTIMS = ("client", "agent", "gateway")
STANDSTILL_S = 120.0

pytestmark = pytest.mark.skipif(
    shutil.which("musl-gcc") is None and shutil.which("cc") is None, reason="no C compiler: apt-get install musl-tools"
)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[dict[str, Part]]:
    gateway = gateway_url(tmp_path)
    parts = {
        "gateway": Part(tmp_path, "gateway", gateway, "60"),
        "agent": Part(tmp_path, "agent", "h1", f"unix:{tmp_path}/h1.sock", gateway),
    }
    fleet_token(tmp_path / "token")
    for part in parts.values():
        part.start()
    yield parts
    for part in parts.values():
        part.kill()
    sweep(tmp_path / "h1")


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


def play(root: Path, fleet: dict[str, Part], key: str, num_calls: int, rng: random.Random) -> int:
    """One trajectory with kills; returns how many there were."""
    client = Part(root, "client", key, str(num_calls))
    parts = {**fleet, "client": client}
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


def check(root: Path, key: str, num_calls: int) -> None:
    told = transcripts(root, key)
    sandbox_id = told[-1][0].split()[1]
    whole = [f"sandbox {sandbox_id}", *expected(num_calls)]
    assert told[-1] == whole
    for lines in told[:-1]:
        cut = [line for line, other in zip(lines, whole, strict=False) if line == other]
        assert len(cut) >= len(lines) - 1, "an earlier client was told something else"  # its last line may be cut
    commands = [seq for seq in range(num_calls) if seq % READ_EVERY != READ_EVERY - 1]
    counted = (root / "h1" / "homes" / sandbox_id / "work" / COUNTER).read_text().split()
    assert counted == [str(seq) for seq in commands], "a command ran twice, or never, or out of turn"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("num_rounds", "num_calls"),
    [pytest.param(1, 60, id="one round"), pytest.param(100, 200, id="all rounds", marks=pytest.mark.nightly)],
)
def test_every_command_runs_exactly_once_whoever_is_killed_and_whenever(
    tmp_path: Path, fleet: dict[str, Part], num_rounds: int, num_calls: int
) -> None:
    rng = random.Random(20261130)
    num_kills = 0
    for index in range(num_rounds):
        num_kills += play(tmp_path, fleet, f"round-{index}", num_calls, rng)
        check(tmp_path, f"round-{index}", num_calls)
    assert num_kills >= 3 * num_rounds
    print(f"{num_rounds} rounds of {num_calls} calls, {num_kills} kills")
