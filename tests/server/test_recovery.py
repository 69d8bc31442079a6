"""A whole server, started as users start it, whose engine is killed: how long until it answers again."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.processes import children_of

BACK_WITHIN_S = 5.0
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "What is 347 + 285?"}], "seed": 1, "max_tokens": 40}


def ask(url: str, body: dict[str, object] | None = None) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body; a refusal is an answer too."""
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, {name.lower(): value for name, value in error.headers.items()}, error.read()


def wait_for_url(log: Path) -> str:
    end = time.monotonic() + 180
    while (found := re.search(r"ready at (http://\S+)", log.read_text())) is None:
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)
    return found.group(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    command = [sys.executable, "-m", "benthic", "serve", "--port", "0"]
    log = tmp_path_factory.mktemp("recovery") / "log"
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            yield process, wait_for_url(log)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                assert process.wait(60) == 0
            finally:
                process.kill()


@pytest.mark.nightly
def test_a_killed_engine_is_back_within_five_seconds_and_says_the_same(
    server: tuple[subprocess.Popen[bytes], str], capsys: pytest.CaptureFixture[str]
) -> None:
    process, url = server
    before = json.loads(ask(f"{url}/v1/chat/completions", CHAT)[2])["choices"]
    times: list[float] = []
    for _ in range(3):
        end = time.monotonic() + 120
        while len(children_of(process.pid, "benthic.engine.child")) < 2 or not has_built(process.pid):
            assert time.monotonic() < end, "nobody stands by"
            time.sleep(0.2)
        pid = min(children_of(process.pid, "benthic.engine.child"))
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        while (answer := ask(f"{url}/health"))[0] == 200:
            time.sleep(0.002)
        assert int(answer[1]["retry-after"]) >= 1
        status, _, raw = ask(f"{url}/v1/chat/completions", CHAT)  # comes while there is no engine, and waits for it
        times.append(time.monotonic() - began)
        assert status == 200
        assert json.loads(raw)["choices"] == before
        assert ask(f"{url}/health")[0] == 200
    with capsys.disabled():
        print("\nkill -9 of the engine, to the end of the next answer:", *(f"{took:.2f} s" for took in times))
    assert max(times) < BACK_WITHIN_S


def has_built(pid: int) -> bool:
    """Whether all children wait: those who still build are busy."""

    def busy() -> list[int]:
        stats = []
        for child in children_of(pid, "benthic.engine.child"):
            with open(f"/proc/{child}/stat") as file:
                stats.append(sum(map(int, file.read().rpartition(")")[2].split()[11:13])))
        return stats

    before = busy()
    time.sleep(1.0)
    return busy() == before
