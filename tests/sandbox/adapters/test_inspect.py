"""Inspect's own checks of a sandbox provider hold, and a whole evaluation runs in our sandboxes."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from benthic.errors import ConfigError
from benthic.sandbox.errors import SandboxDied
from benthic.sandbox.records import Reason
from benthic.sandbox.sandbox import Sandbox
from tests.sandbox.kinds import require_kind

pytest.importorskip("inspect_ai", reason="inspect-ai is not installed (extra benthic[inspect])")

from inspect_ai import Task, eval  # noqa: E402
from inspect_ai.dataset import Sample  # noqa: E402
from inspect_ai.model import ModelOutput, ModelUsage, get_model  # noqa: E402
from inspect_ai.scorer import includes  # noqa: E402
from inspect_ai.solver import generate, use_tools  # noqa: E402
from inspect_ai.tool import bash  # noqa: E402
from inspect_ai.util import (  # noqa: E402
    OutputLimitExceededError,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
)
from inspect_ai.util._sandbox import self_check  # noqa: E402
from inspect_ai.util._sandbox.limits import override_sandbox_output_limit  # noqa: E402

from benthic.sandbox.tools.adapters.inspect_ai import BenthicConfig, BenthicSandboxEnvironment  # noqa: E402


def config(root: Path) -> BenthicConfig:
    return BenthicConfig(kind="function", memory_bytes=256 << 20, num_processes=64, root=str(root))


def play(root: Path, scene: Callable[[BenthicSandboxEnvironment], Awaitable[None]]) -> None:
    require_kind("function")

    async def whole() -> None:
        made = await BenthicSandboxEnvironment.sample_init("task", config(root), {})
        try:
            await scene(made["default"].as_type(BenthicSandboxEnvironment))
        finally:
            await BenthicSandboxEnvironment.sample_cleanup("task", config(root), made, interrupted=False)

    asyncio.run(whole())


CHECKS = sorted(name for name in vars(self_check) if name.startswith("test_"))
CANNOT = {
    "test_exec_as_user": "it adds a user; a sandbox has its ordinary one and root",
    "test_exec_large_command": "it passes a mebibyte of arguments; init takes less in one command",
}


@pytest.mark.parametrize("check", [name for name in CHECKS if name not in CANNOT])
def test_inspects_own_checks_of_a_provider_pass(tmp_path: Path, check: str) -> None:
    play(tmp_path, getattr(self_check, check))


def test_commands_are_argv_with_input_folder_and_environment(tmp_path: Path) -> None:
    async def scene(sandbox: BenthicSandboxEnvironment) -> None:
        result = await sandbox.exec(["printf", "%s|%s", "a b", "$HOME"])
        assert (result.success, result.stdout) == (True, "a b|$HOME")
        await sandbox.write_file("sub/in", "x")
        result = await sandbox.exec(["sh", "-c", "pwd; cat; echo $A; exit 3"], input="in\n", cwd="sub", env={"A": "b"})
        assert (result.success, result.returncode, result.stdout) == (False, 3, "/work/sub\nin\nb\n")
        assert not (await sandbox.exec(["no-such-program"])).success
        with pytest.raises(SandboxUserUnsupportedError):
            await sandbox.exec(["true"], user="postgres")
        assert (await sandbox.connection()).command == f"benthic sandbox shell {sandbox.sandbox.id}"

    play(tmp_path, scene)


def test_a_command_that_was_ended_is_never_run_again(tmp_path: Path) -> None:
    async def scene(sandbox: BenthicSandboxEnvironment) -> None:
        with pytest.raises(TimeoutError):
            await sandbox.exec(["sh", "-c", "echo run >> runs; sleep 30"], timeout=1, timeout_retry=True)
        assert await sandbox.read_file("runs") == "run\n"

    play(tmp_path, scene)


def test_inspects_limits_hold(tmp_path: Path) -> None:
    async def scene(sandbox: BenthicSandboxEnvironment) -> None:
        await sandbox.write_file("large", b"x" * 5000)
        with override_sandbox_output_limit(4096):
            with pytest.raises(OutputLimitExceededError) as caught:
                await sandbox.exec(["cat", "large"])
            assert set(caught.value.truncated_output or "") == {"x"}
            with pytest.raises(OutputLimitExceededError):
                await sandbox.read_file("large")
        assert len((await sandbox.exec(["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' y"])).stdout) == 3_000_000

    play(tmp_path, scene)


def test_files_fail_with_the_errors_that_inspect_knows(tmp_path: Path) -> None:
    async def scene(sandbox: BenthicSandboxEnvironment) -> None:
        await sandbox.write_file("bytes", b"\xff\r\n")
        assert await sandbox.read_file("bytes", text=False) == b"\xff\r\n"
        with pytest.raises(UnicodeDecodeError):
            await sandbox.read_file("bytes")
        with pytest.raises(FileNotFoundError):
            await sandbox.read_file("nothing")
        with pytest.raises(IsADirectoryError):
            await sandbox.read_file("/work")
        with pytest.raises(IsADirectoryError):
            await sandbox.write_file("/work", "x")
        with pytest.raises(PermissionError):
            await sandbox.write_file("/etc/here", "x")

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("reason", "expected"), [(Reason.OUT_OF_MEMORY, SandboxUnavailableError), (Reason.HOST_LOST, SandboxDied)]
)
def test_the_agents_end_is_inspects_and_the_machines_stays_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: Reason, expected: type[Exception]
) -> None:
    async def dead(self: Sandbox, *args: Any, **more: Any) -> Any:
        raise SandboxDied(self.id, reason)

    async def scene(sandbox: BenthicSandboxEnvironment) -> None:
        monkeypatch.setattr(Sandbox, "call_logged", dead)
        for call in (sandbox.exec(["true"]), sandbox.read_file("a"), sandbox.write_file("a", "b")):
            with pytest.raises(expected):
                await call

    play(tmp_path, scene)


def evaluated(root: Path, command: str) -> Any:
    require_kind("function")
    usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # else it is counted, with a download
    outputs = [
        ModelOutput.for_tool_call("mockllm/model", "bash", {"command": command}),
        ModelOutput.from_content("mockllm/model", "done: forty-two"),
    ]
    for output in outputs:
        output.usage = usage
    task = Task(
        dataset=[Sample(input="Look.", target="forty-two", files={"given": "from the sample"})],
        solver=[use_tools(bash(timeout=20)), generate()],
        scorer=includes(),
        sandbox=SandboxEnvironmentSpec("benthic", config(root)),
    )
    model = get_model("mockllm/model", custom_outputs=outputs)
    (log,) = eval(task, model=model, log_dir=str(root / "logs"), display="none", fail_on_error=False)
    return log


def test_an_evaluation_runs_in_our_sandbox(tmp_path: Path) -> None:
    log = evaluated(tmp_path, "cat given; id -u; pwd")
    assert log.status == "success", log.error
    (tool,) = [message for message in log.samples[0].messages if message.role == "tool"]
    assert tool.text == "from the sample1000\n/work\n"
    assert log.samples[0].scores["includes"].value == "C"


def test_a_sample_whose_machine_failed_has_an_error_and_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Sandbox.exec

    async def dead(self: Sandbox, command: Any, **more: Any) -> Any:
        if "cat given" in str(command):
            raise SandboxDied(self.id, Reason.HOST_LOST)
        return await run(self, command, **more)

    monkeypatch.setattr(Sandbox, "exec", dead)
    log = evaluated(tmp_path, "cat given")
    assert "host_lost" in log.samples[0].error.message
    assert not log.samples[0].scores


def test_a_config_is_a_record_or_a_file_of_one(tmp_path: Path) -> None:
    path = tmp_path / "benthic.json"
    path.write_text(BenthicConfig(network=("pypi.org:443",), cpus=2).model_dump_json())
    read = BenthicSandboxEnvironment.config_deserialize({"kind": "vm"})
    assert isinstance(read, BenthicConfig) and read.spec().kind == "vm"
    with pytest.raises(ValueError, match="Extra inputs"):
        BenthicConfig.model_validate({"memory": 1})

    async def refused() -> None:
        await BenthicSandboxEnvironment.sample_init("task", SandboxEnvironmentSpec("local"), {})

    with pytest.raises(ConfigError, match="BenthicConfig"):
        asyncio.run(refused())
