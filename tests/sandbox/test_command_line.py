"""`benthic sandbox run`, `ls` and `close` as a user at a terminal meets them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.sandbox.kinds import require_kind

COMMAND = (sys.executable, "-m", "benthic", "sandbox")
ENV = {**os.environ, "PYTHONPATH": "src", "OMP_NUM_THREADS": "1"}


def benthic(root: Path, verb: str, *words: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    asked = (*COMMAND, verb, "--root", str(root), *words)
    return subprocess.run(asked, input=stdin, capture_output=True, text=True, env=ENV, timeout=60, check=False)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--memory", "32", "--", "python3", "-c", "bytearray(1 << 30)"), 137, "memory ran out at 32 MiB"),
        (("--", "sh", "-c", "kill -9 $$"), 137, "ended by SIGKILL"),
        (("--", "echo hi; ls"), 127, "run by: -- sh -c 'echo hi; ls'"),
        (("--timeout", "0.3", "--", "sleep", "9"), 124, "ended after 0.3 s, its time limit"),
        (("--stdin", "--", "sh", "-c", "cat; exit 7"), 7, ""),
    ],
    ids=["memory", "signal", "one word", "time", "stdin"],
)
def test_a_command_that_ends_badly_says_why(tmp_path: Path, words: tuple[str, ...], code: int, says: str) -> None:
    require_kind("function")
    done = benthic(tmp_path, "run", *words, stdin="typed")
    assert done.returncode == code, done
    assert says in done.stderr
    assert done.stdout == ("typed" if "--stdin" in words else "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_interrupted_or_whose_terminal_is_closed_leaves_no_sandbox(tmp_path: Path, number: int) -> None:
    require_kind("function")
    asked = (*COMMAND, "run", "--root", str(tmp_path), "--", "sh", "-c", "echo up; sleep 999")
    heeded = signal.signal(number, signal.SIG_DFL)  # or a run of these tests under nohup would be passed on
    try:
        running = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV)
    finally:
        signal.signal(number, heeded)
    with running:
        assert running.stdout is not None and running.stdout.readline() == b"up\n"
        running.send_signal(number)
        running.wait(30)
        assert running.returncode == 128 + number
        assert running.stderr is not None and b"Traceback" not in running.stderr.read()
    assert benthic(tmp_path, "ls").stdout == "no sandboxes\n"
    assert list((tmp_path / "homes").iterdir()) == []


def test_what_a_killed_run_left_is_listed_and_can_be_closed(tmp_path: Path) -> None:
    require_kind("function")
    asked = (*COMMAND, "run", "--root", str(tmp_path), "--", "sh", "-c", "echo up; sleep 999")
    with subprocess.Popen(asked, stdout=subprocess.PIPE, env=ENV) as running:
        assert running.stdout is not None and running.stdout.readline() == b"up\n"
        running.kill()
    listed = benthic(tmp_path, "ls").stdout.split()
    assert listed[1:3] == ["function", "running"]
    assert "give --all" in benthic(tmp_path, "close").stderr
    assert benthic(tmp_path, "close", listed[0]).stdout == f"{listed[0]} is closed\n"
    assert benthic(tmp_path, "ls").stdout == "no sandboxes\n"


def test_nobody_waits_long_for_a_gateway_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from benthic.cli import sandbox_hosts
    from benthic.cli.sandbox import sandbox
    from benthic.sandbox.errors import HostUnreachable

    assert sandbox_hosts.PATIENCE_S <= 10
    monkeypatch.setattr(sandbox_hosts, "PATIENCE_S", 0.2)
    began = time.monotonic()
    done = CliRunner().invoke(sandbox, ["ls", "--url", f"unix:{tmp_path}/none"])
    assert isinstance(done.exception, HostUnreachable)
    assert time.monotonic() - began < 5
