"""A writer is killed with -9 wherever it stands; whatever it had acknowledged is there, and the log goes on."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benthic.sandbox.trajectory import Trajectory
from tests.sandbox.trajectory.written import blobs

ROOT = Path(__file__).resolve().parents[3]
# Says `b SEQ` once a call may run and `e SEQ` once it may be answered, as a host would act on it.
WRITER = """
import asyncio, sys
from pathlib import Path
from benthic.sandbox.host import Answer, Request
from tests.sandbox.trajectory.written import new_log, opened

async def scene():
    folder = Path(sys.argv[1])
    log = await (opened(folder) if (folder / "0123456789ab.log").exists() else new_log(folder))
    while True:
        seq = log.next_seq
        if seq and log.place(seq - 1).end is None:
            await log.end(seq - 1, Answer(data=b"found out later"))
            print("e", seq - 1, flush=True)
        size = 1 << 19 if seq % 7 == 3 else seq * 37 % 3000
        await log.begin(seq, Request(verb="write", arguments={"n": seq}, data=bytes([seq % 251]) * size))
        print("b", seq, flush=True)
        await log.end(seq, Answer(value={"n": seq}, data=bytes([seq % 253]) * size))
        print("e", seq, flush=True)

asyncio.run(scene())
"""


def killed_writer(folder: Path, num_lines: int, pause_s: float) -> list[tuple[str, int]]:
    """What a writer acknowledged before it was killed, some time after its so many-th line."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True, env=env)
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(num_lines)]
    try:
        writer.wait(pause_s)
    except subprocess.TimeoutExpired:
        writer.send_signal(signal.SIGKILL)
    lines += writer.stdout.readlines()
    writer.wait()
    writer.stdout.close()
    return [(line.split()[0], int(line.split()[1])) for line in lines if line.endswith("\n")]


def check_killed_writers(folder: Path, rounds: int, rng: random.Random) -> None:
    acknowledged: dict[str, set[int]] = {"b": set(), "e": set()}
    for _ in range(rounds):
        for what, seq in killed_writer(folder, rng.randrange(1, 30), rng.random() * 0.02):
            assert seq not in acknowledged[what], "a call was begun or ended twice"
            acknowledged[what].add(seq)
        log = Trajectory.read(folder / "0123456789ab.log", blobs(folder))
        entries = list(log.entries())
        assert {entry.seq for entry in entries} >= acknowledged["b"]
        assert {entry.seq for entry in entries if entry.answer} >= acknowledged["e"]
        assert all(entry.answer for entry in entries[:-1]), "only the last call can be open"
        for entry in entries:
            assert set(entry.request.data) <= {entry.seq % 251}


def test_a_writer_killed_at_any_time_loses_nothing_that_it_acknowledged(tmp_path: Path, seed: int) -> None:
    check_killed_writers(tmp_path, 3, random.Random(seed))


@pytest.mark.nightly
def test_a_writer_killed_a_hundred_times_loses_nothing_that_it_acknowledged(tmp_path: Path, seed: int) -> None:
    check_killed_writers(tmp_path, 100, random.Random(seed))
