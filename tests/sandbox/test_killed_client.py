"""A program is killed with -9 wherever it stands, and run again: every command of its sandbox runs exactly once."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benthic.sandbox import LocalHost
from benthic.sandbox.trajectory import verify
from tests.sandbox.bare_driver import BareDriver
from tests.sandbox.bare_host import needs_unshare, sweep

pytestmark = needs_unshare
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import asyncio, sys
from pathlib import Path
from benthic.sandbox import LocalHost, Sandbox
from tests.sandbox.bare_driver import BareDriver
from tests.sandbox.bare_host import spec

async def main():
    root, count = Path(sys.argv[1]), int(sys.argv[2])
    async with LocalHost(root, [BareDriver(root)]) as host:
        info = await host.create(spec(root), key="the episode")
        sandbox = await Sandbox.resume_from(info.id, host=host)
        for n in range(count):
            match n % 4:
                case 0:
                    await sandbox.exec(f"echo {n} >> counter; sleep 0.0{n % 10}; echo {n}")
                case 1:
                    process = await sandbox.spawn("read x; echo $x >> counter", keeps_input=True)
                    await process.feed(f"{n}\\n")
                    await process.wait()
                case 2:
                    await sandbox.exec(f"cat >> counter", stdin=f"{n}\\n")
                case 3:
                    lines = (await sandbox.read(f"{sandbox.spec.cwd}/counter")).count(b"\\n")
                    await sandbox.write(f"{sandbox.spec.cwd}/lines", str(lines))
                    await sandbox.exec(f"echo {n} >> counter")
        print(info.id, (await sandbox.exec("cat counter lines")).text.replace("\\n", " "), flush=True)

asyncio.run(main())
"""


def undisturbed(count: int) -> list[str]:
    """What the counter holds in the end, and the last count of its lines."""
    last = max(n for n in range(count) if n % 4 == 3)
    return [*map(str, range(count)), str(last)]


def play_with_kills(root: Path, count: int, num_kills: int, rng: random.Random) -> int:
    """Returns how often the program was killed before it came to its end."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-c", PROGRAM, str(root), str(count)]
    kills, deadline = 0, time.monotonic() + 1500
    while True:
        assert time.monotonic() < deadline, "the program makes no progress"
        client = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            # It takes half a second to import; the kill falls anywhere from its first act to its end.
            out, err = client.communicate(timeout=rng.uniform(0.4, 1.6) if kills < num_kills else 300)
        except subprocess.TimeoutExpired:
            client.send_signal(signal.SIGKILL)
            client.communicate()
            kills += 1
            continue
        assert client.returncode == 0, err
        sandbox_id, *said = out.split()
        assert said == undisturbed(count)
        asyncio.run(check_log(root, sandbox_id))
        return kills


async def check_log(root: Path, sandbox_id: str) -> None:
    """The log has no open call, and a second run of it comes to the same."""
    async with LocalHost(root, [BareDriver(root)]) as host:
        log = host.trajectory(sandbox_id)
        assert all(place.end is not None for place in log.places())
        report = await verify(host, log)
        assert report.first_difference is None, report.first_difference
    await sweep(root)


def test_a_killed_program_that_is_run_again_has_run_every_command_once(tmp_path: Path, seed: int) -> None:
    play_with_kills(tmp_path, 24, 4, random.Random(seed))


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_programs_killed_a_hundred_times_have_run_every_command_once(tmp_path: Path, seed: int) -> None:
    rng, kills, round_ = random.Random(seed), 0, 0
    while kills < 100:
        kills += play_with_kills(tmp_path / str(round_), 200, 100, rng)
        round_ += 1
