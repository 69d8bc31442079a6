"""Hundreds of clients that stall, leave, lie and exceed limits: those who behave get, bit for bit, what they get alone,
and afterwards nothing of the others is left: no sequence, page, body, connection, file, thread, task or memory."""

import asyncio
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.models.transformer import Transformer
from benthic.server.config import ServerConfig
from tests.server.chaos import Attacker, good_answer
from tests.server.conftest import CONTEXT_LEN, Live, build
from tests.server.processes import children_of, num_open_files, resident_bytes
from tests.server.test_recovery import wait_for_url

pytestmark = pytest.mark.anyio
SETTLE_S = 60.0


class Chaos:
    """A crowd before one server, of which the first `num_good` behave."""

    def __init__(
        self, url: str, *, num_bad: int, num_good: int, acts: int, patience_s: float, context_len: int
    ) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.url = url
        self.num_good = num_good
        self.acts = acts
        self.attackers = [
            Attacker(host, int(port), random.Random(seed), patience_s, context_len) for seed in range(num_bad)
        ]
        self.alone: list[str] = []
        self.num_answers = 0
        self.num_told = 0

    async def be_quiet(self) -> None:
        """The answers of those who behave, one after the other."""
        async with httpx.AsyncClient(base_url=self.url, timeout=120) as client:
            self.alone = [(await good_answer(client, index))[0] for index in range(self.num_good)]

    async def run(self) -> None:
        """All at once; whoever behaves asks again and again until the others are done."""
        self._is_over = False
        bad = asyncio.gather(*map(self._misbehave, self.attackers))
        good = asyncio.gather(*map(self._behave, range(self.num_good)))
        try:
            await bad
            self._is_over = True
            await good
        finally:
            bad.cancel()
            good.cancel()

    def deeds(self) -> Counter[str]:
        """What was done."""
        return sum((attacker.done for attacker in self.attackers), Counter())

    async def _misbehave(self, attacker: Attacker) -> None:
        for _ in range(self.acts):
            await attacker.act()

    async def _behave(self, index: int) -> None:
        async with httpx.AsyncClient(base_url=self.url, timeout=120) as client:
            while True:
                is_last = self._is_over
                text, told = await good_answer(client, index)
                assert text == self.alone[index], f"client {index} got another answer in the crowd"
                self.num_answers += 1
                self.num_told += told
                if is_last:
                    return


async def until(condition: Callable[[], bool], seconds: float = SETTLE_S) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


async def test_a_crowd_of_bad_clients_changes_no_answer_and_leaves_nothing_behind(model: Transformer) -> None:
    config = EngineConfig(max_num_seqs=8, max_model_len=CONTEXT_LEN, debug_checks=True)
    engine = Engine(model, config)
    limits = ServerConfig(
        max_open_sequences=24,
        max_connections=48,
        header_timeout_s=0.4,
        body_timeout_s=0.4,
        write_timeout_s=0.5,
        max_buffered_bytes=20 << 20,
    )
    service = build(engine, limits)
    with Live(service, engine) as up:
        loop = up.server._loop
        assert loop is not None
        crowd = Chaos(up.url, num_bad=60, num_good=4, acts=2, patience_s=0.5, context_len=CONTEXT_LEN)
        await crowd.be_quiet()
        assert await until(lambda: not up.server.server_state.connections)
        num_tasks = len(asyncio.all_tasks(loop))
        await crowd.run()
        assert await until(lambda: service.channel.num_open == 0 and not engine.has_work())
        assert await until(lambda: not up.server.server_state.connections)
        assert await until(lambda: len(asyncio.all_tasks(loop)) == num_tasks)
        assert service.intake.held_bytes == 0
        service.channel.engine.check().result(30)
        stats = engine.stats()
        assert (stats.num_running, stats.num_waiting, stats.used_pages, stats.used_windows) == (0, 0, 0, 0)
        assert len(crowd.deeds()) >= 12
        assert crowd.num_answers >= 8
        status = (await up.client.get("/metrics")).text
        assert not re.findall(r'requests_total\{[^}]*status="50[0-2]"\}', status)


@pytest.mark.nightly
async def test_five_hundred_bad_clients_before_a_whole_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = {"header_timeout_s": 3, "body_timeout_s": 3, "write_timeout_s": 4}
    options = [text for name, value in limits.items() for text in (f"--server.{name}", str(value))]
    command = [sys.executable, "-m", "benthic", "serve", "--port", "0", "--engine.max_model_len", "2048", *options]
    # Into a file: a pipe that nobody reads fills up, and then the server waits for its own log.
    log = tmp_path / "log"
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            url = await asyncio.to_thread(wait_for_url, log)
            report = await storm(url, process.pid)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 60) == 0
        finally:
            process.kill()
    with capsys.disabled():
        print(report)


async def storm(url: str, pid: int) -> str:
    """Two rounds of the full crowd: the first fills caches and pools, the second must add nothing."""
    crowd = Chaos(url, num_bad=500, num_good=20, acts=2, patience_s=4.0, context_len=2048)
    assert await until(lambda: len(children_of(pid, "benthic.engine.child")) == 2, 120), "nobody stands by"
    await crowd.be_quiet()
    await settled(url)
    rounds: list[dict[str, Any]] = []
    for _ in range(2):
        began = time.monotonic()
        await crowd.run()
        ended = time.monotonic()
        metrics = await settled(url)
        pids = (pid, min(children_of(pid, "benthic.engine.child")))
        assert await until(lambda: num_open_files(pid) <= rounds[0]["files"][0] if rounds else True)
        rounds.append(
            {
                "seconds": ended - began,
                "settled": time.monotonic() - ended,
                "files": tuple(map(num_open_files, pids)),
                "threads": tuple(len(list(Path(f"/proc/{p}/task").iterdir())) for p in pids),
                "resident MiB": tuple(resident_bytes(p) >> 20 for p in pids),
                "aborted": total(metrics, "aborted_requests_total"),
                "unanswerable": total(metrics, r'requests_total\{.*status="50[0-2]"'),
            }
        )
    first, second = rounds
    assert second["unanswerable"] == 0
    assert second["files"] <= first["files"]
    assert second["threads"] <= first["threads"]
    growth = [after - before for before, after in zip(first["resident MiB"], second["resident MiB"], strict=True)]
    assert max(growth) < 40, rounds
    lines = [f"{number}: {round}" for number, round in enumerate(rounds, 1)]
    told = f"{crowd.num_answers} good answers, all as alone; {crowd.num_told} times told to come back"
    return "\n".join(["", *lines, told, f"growth {growth} MiB", str(dict(crowd.deeds()))])


def total(metrics: dict[str, float], pattern: str) -> int:
    """Of all series whose name has the pattern."""
    return round(sum(value for name, value in metrics.items() if re.search(pattern, name)))


async def settled(url: str) -> dict[str, float]:
    """The server's figures once nothing runs, waits or is held any more."""
    idle = ("benthic_open_sequences", "benthic_num_running_reqs", "benthic_num_queue_reqs", "benthic_kv_used_pages")
    end = time.monotonic() + SETTLE_S
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while True:
            text = (await client.get("/metrics")).text
            lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
            values = {name: float(value) for name, _, value in lines}
            if not any(values[name] for name in idle):
                return values
            assert time.monotonic() < end, {name: values[name] for name in idle}
            await asyncio.sleep(0.1)
