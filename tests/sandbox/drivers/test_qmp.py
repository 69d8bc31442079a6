"""The client of QEMU's protocol, against a server that plays QEMU, well and badly."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from benthic.sandbox.drivers.accelerator import Accelerator, kvm_obstacle
from benthic.sandbox.drivers.qmp import LINE_BYTES, QmpError, qmp

GREETING = b'{"QMP": {"version": {}, "capabilities": []}}\n'
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def against(tmp_path: Path, script: Script, command: str = "query-status", **arguments: object) -> object:
    async def run() -> object:
        server = await asyncio.start_unix_server(script, tmp_path / "sock")
        async with server, qmp(tmp_path / "sock", answer_s=1.0) as control:
            return await control.execute(command, **arguments)

    return asyncio.run(run())


def playing(*answers: bytes) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING)
        for answer in (b'{"return": {}}\n', *answers):
            await reader.readline()
            writer.write(answer)
        await reader.read()
        writer.close()

    return script


def test_events_between_question_and_answer_are_passed_over(tmp_path: Path) -> None:
    answer = b'{"event": "STOP"}\n{"event": "RESUME"}\n{"return": {"running": true}}\n'
    assert against(tmp_path, playing(answer)) == {"running": True}


def test_a_refusal_says_what_was_asked_and_why_not(tmp_path: Path) -> None:
    with pytest.raises(QmpError, match="query-status: not now"):
        against(tmp_path, playing(b'{"error": {"class": "GenericError", "desc": "not now"}}\n'))


@pytest.mark.parametrize(
    "answer", [b"x" * (LINE_BYTES + 2) + b"\n", b"no json\n", b"[1]\n", b""], ids=["endless", "no json", "list", "none"]
)
def test_nonsense_is_an_error_and_not_a_wait(tmp_path: Path, answer: bytes) -> None:
    with pytest.raises(QmpError):
        against(tmp_path, playing(answer))


def test_argument_names_are_qemus(tmp_path: Path) -> None:
    asked = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING)
        while line := await reader.readline():
            asked.append(json.loads(line))
            writer.write(b'{"return": {}}\n')
        writer.close()

    against(tmp_path, script, "migrate-set-parameters", max_bandwidth=5)
    assert asked[1] == {"execute": "migrate-set-parameters", "arguments": {"max-bandwidth": 5}}


def test_kvm_is_not_believed_in_where_its_device_is_missing_or_closed(tmp_path: Path) -> None:
    assert kvm_obstacle(tmp_path / "kvm") == f"no {tmp_path / 'kvm'}"
    (tmp_path / "kvm").touch(mode=0o600)
    assert "chmod 666" in (kvm_obstacle(tmp_path / "kvm", has_other_uid=True) or "")


def test_only_a_translated_guest_is_told_the_hosts_clock_rate() -> None:
    assert Accelerator("tcg", 2_600_000).kernel_words() == "tsc_early_khz=2600000"
    assert Accelerator("kvm", 2_600_000).kernel_words() == ""
