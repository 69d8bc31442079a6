"""What a command is on every kind: its streams, its end, its limits, and that the next one works."""

import asyncio
import time

import pytest

from benthic.sandbox import Chunk, CommandTimeout, OutputLimit, Reason, Result, Sandbox
from tests.sandbox.conformance.conftest import Stand


def test_a_shell_command_and_a_program_are_told_apart(stand: Stand, sandbox: Sandbox) -> None:
    async def scene() -> None:
        assert (await sandbox.exec("echo $((1 + 2)) && echo two >&2")).stdout == b"3\n"
        plain = await sandbox.exec(["echo", "$((1 + 2))", "a b"])
        assert (plain.text, plain.returncode, plain.reason) == ("$((1 + 2)) a b\n", 0, Reason.EXITED)

    stand.play(scene)


def test_codes_signals_and_missing_programs_are_results(stand: Stand, sandbox: Sandbox) -> None:
    async def scene() -> None:
        assert (await sandbox.exec("exit 7")).returncode == 7
        killed = await sandbox.exec("kill -9 $$")
        assert (killed.returncode, killed.reason) == (-9, Reason.SIGNALLED)
        missing = await sandbox.exec(["/no/such/program"])
        assert missing.returncode == 127 and b"/no/such/program" in missing.stderr

    stand.play(scene)


def test_input_environment_and_folder_are_as_asked_and_nothing_is_inherited(
    stand: Stand, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", "secret")

    async def scene() -> None:
        assert (await sandbox.exec("cat", stdin=b"\0bytes\xff")).stdout == b"\0bytes\xff"
        shown = await sandbox.exec("echo $A; pwd; env", cwd="/tmp", env={"A": "x y"})
        assert shown.text.startswith("x y\n/tmp\n") and "CANARY" not in shown.text

    stand.play(scene)


def test_large_input_goes_in_and_output_is_kept_at_both_ends(stand: Stand, sandbox: Sandbox) -> None:
    async def scene() -> None:
        assert (await sandbox.exec("wc -c", stdin=b"x" * 700_000)).text.strip() == "700000"
        result = await sandbox.exec("echo start; head -c 300000 /dev/zero; echo end", max_output_bytes=10_000)
        assert result.stdout.startswith(b"start\n") and result.stdout.endswith(b"end\n")
        assert len(result.stdout) <= 10_000
        assert result.dropped_stdout_bytes == 300_010 - len(result.stdout)
        with pytest.raises(OutputLimit):
            await sandbox.exec("head -c 3000 /dev/zero", max_output_bytes=1000, strict_output=True)

    stand.play(scene)


@pytest.mark.parametrize(
    "stubborn",
    ["sleep 100", "trap '' TERM; sleep 100", "yes", "(sleep 100 &) ; sleep 100", "while :; do :; done"],
)
def test_time_ends_a_command_with_all_that_it_started_and_nothing_else(
    stand: Stand, sandbox: Sandbox, stubborn: str
) -> None:
    async def scene() -> None:
        began = time.monotonic()
        with pytest.raises(CommandTimeout) as caught:
            await sandbox.exec(f"echo before; {stubborn}", timeout_s=stand.moment_s)
        assert caught.value.result.reason is Reason.TIMEOUT
        assert caught.value.result.stdout.startswith(b"before\n")
        assert time.monotonic() - began < 10
        assert (await sandbox.exec("echo next")).text == "next\n"

    stand.play(scene)


def test_silence_ends_a_command_and_a_talking_one_goes_on(stand: Stand, sandbox: Sandbox) -> None:
    async def scene() -> None:
        with pytest.raises(CommandTimeout) as caught:
            await sandbox.exec("echo a; sleep 50", quiet_timeout_s=1)
        assert caught.value.result.reason is Reason.QUIET
        talking = await sandbox.exec("for i in 1 2 3 4; do echo $i; sleep 0.4; done", quiet_timeout_s=2)
        assert talking.text.split() == ["1", "2", "3", "4"]

    stand.play(scene)


def test_a_stream_gives_output_as_it_comes_and_a_slow_reader_loses_nothing(stand: Stand, sandbox: Sandbox) -> None:
    async def scene() -> None:
        seen, num_bytes, result = [], 0, None
        async for item in sandbox.stream("echo first; sleep 0.5; head -c 2500000 /dev/zero; echo err >&2"):
            match item:
                case Chunk(stream, data):
                    seen.append((time.monotonic(), stream))
                    num_bytes += len(data) if stream == "stdout" else 0
                    await asyncio.sleep(0.001)
                case Result():
                    result = item
        assert num_bytes == 2_500_006
        assert seen[1][0] - seen[0][0] > 0.2
        assert result is not None and result.returncode == 0 and result.is_truncated

    stand.play(scene)


def test_a_background_command_is_fed_waited_for_and_found_again(stand: Stand, sandbox: Sandbox) -> None:
    async def scene() -> None:
        process = await sandbox.spawn("while read x; do echo got $x; done; echo over", keeps_input=True)
        await process.feed("one\n")
        await process.feed("two\n", is_last=True)
        result = await sandbox.process(process.seq).wait()
        assert (result.text, result.returncode) == ("got one\ngot two\nover\n", 0)
        assert await process.wait() == await process.wait()
        kept = [chunk.data async for chunk in process.output()]
        assert b"".join(kept) == result.stdout

    stand.play(scene)


def test_a_background_command_lives_beside_others_until_it_is_killed(stand: Stand, sandbox: Sandbox) -> None:
    async def scene() -> None:
        process = await sandbox.spawn("sleep 1000")
        assert (await sandbox.exec("echo beside")).text == "beside\n"
        await process.kill()
        assert (await process.wait()).returncode == -9

    stand.play(scene)


def test_a_terminal_is_one(stand: Stand, sandbox: Sandbox) -> None:
    async def scene() -> None:
        process = await sandbox.spawn("test -t 0 && test -t 1 && stty size", terminal=(33, 99))
        assert b"33 99" in (await process.wait()).stdout

    stand.play(scene)


def test_a_session_keeps_folder_variables_and_functions_and_survives_a_stuck_command(
    stand: Stand, sandbox: Sandbox
) -> None:
    async def scene() -> None:
        session = sandbox.session("work")
        await session.exec("cd /tmp && export NAME='a \"b\" c'")
        assert (await session.exec('pwd; echo "$NAME"')).text == '/tmp\na "b" c\n'
        with pytest.raises(CommandTimeout):
            await session.exec("cd /; sleep 100", timeout_s=0.5)
        assert (await session.exec("pwd; exit 4")).text == "/tmp\n"
        failed = await session.exec("false")
        assert failed.returncode == 1
        assert (await sandbox.session("other").exec("echo -$NAME-")).text == "--\n"

    stand.play(scene)
