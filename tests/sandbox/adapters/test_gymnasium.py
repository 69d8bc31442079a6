"""Tasks through Gymnasium: its own checker is content, limits truncate, and the machine's fault is never a zero."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benthic.sandbox.errors import SandboxDied
from benthic.sandbox.probe import local_host
from benthic.sandbox.records import Limits, Reason, SandboxSpec
from benthic.sandbox.sandbox import Sandbox
from benthic.sandbox.tools import FileCheck, Task
from tests.sandbox.kinds import require_kind

gym = pytest.importorskip("gymnasium", reason="gymnasium is not installed (extra benthic[gymnasium])")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from benthic.sandbox.tools.adapters.gymnasium import AnyText, EpisodeLost, SandboxEnv  # noqa: E402

FUNCTION = SandboxSpec(kind="function", limits=Limits(memory_bytes=128 << 20, num_processes=32))
HELLO = Task(
    id="hello",
    prompt="Write hello into /work/out.",
    spec=FUNCTION,
    checks=(FileCheck(name="out", path="/work/out", content=b"hello\n"),),
    max_steps=4,
)
OTHER = replace(HELLO, id="other", prompt="The same, but called otherwise.")
SHORT = replace(HELLO, spec=replace(FUNCTION, ttl_s=1.5))
SUBMIT = json.dumps(
    {
        "role": "assistant",
        "tool_calls": [{"id": "s", "type": "function", "function": {"name": "submit", "arguments": "{}"}}],
    }
)
Make = Callable[..., SandboxEnv]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    require_kind("function")
    made = []

    def one(tasks: Any = HELLO, **options: Any) -> SandboxEnv:
        made.append(SandboxEnv(tasks, host=partial(local_host, tmp_path), **options))
        return made[-1]

    yield one
    for environment in made:
        environment.close()


def test_commands_and_messages_are_actions_and_the_last_step_has_the_reward(make: Make) -> None:
    env = make()
    observation, info = env.reset(seed=0)
    assert observation == HELLO.prompt and "bash" in str(info["tools"])
    observation, reward, terminated, truncated, _ = env.step("cd /tmp; echo hello > /work/out; cat /work/out")
    assert (observation, reward, terminated, truncated) == ("hello", 0.0, False, False)
    assert env.step("pwd")[0] == "/tmp", "the shell's folder stays"
    _, reward, terminated, truncated, info = env.step(SUBMIT)
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["checks"] == {"out": True} and not info["is_masked"]
    with pytest.raises(gym.error.ResetNeeded):
        env.step("ls")


def test_json_that_is_no_message_is_a_command(make: Make) -> None:
    env = make()
    env.reset()
    assert env.step('{ echo "a b"; }')[0] == "a b"
    assert "not found" in env.step('{"role": "user"}')[0]


def test_bad_work_earns_a_zero_that_counts(make: Make) -> None:
    env = make()
    env.reset()
    _, reward, terminated, truncated, info = env.step(SUBMIT)
    assert (reward, terminated, truncated, info["is_masked"]) == (0.0, True, False, False)


def test_steps_that_run_out_truncate_and_the_work_is_judged_as_it_stands(make: Make) -> None:
    env = make()
    env.reset()
    env.step("echo hello > out")
    assert [env.step("true")[2:4] for _ in range(2)] == [(False, False)] * 2
    _, reward, terminated, truncated, _ = env.step("true")
    assert (reward, terminated, truncated) == (1.0, False, True)


def test_time_that_runs_out_truncates(make: Make) -> None:
    env = make(time_limit_s=0.0)
    env.reset()
    assert env.step("echo hello > out")[1:4] == (1.0, False, True)


def expired(env: SandboxEnv) -> tuple[str, float, bool, bool, dict[str, Any]]:
    """The last step of an episode whose sandbox is taken away."""
    env.reset()
    for _ in range(HELLO.max_steps):
        outcome = env.step("echo hello > out; sleep 1")
        if outcome[2] or outcome[3]:
            return outcome
    raise AssertionError("the sandbox outlived its time")


def test_a_machine_that_fails_raises_an_error_of_its_own(make: Make) -> None:
    env = make(SHORT)
    with pytest.raises(EpisodeLost, match="expired.*leave it out") as caught:
        expired(env)
    assert caught.value.is_infra
    with pytest.raises(gym.error.ResetNeeded):
        env.step("ls")


def test_or_is_masked_and_never_a_zero(make: Make) -> None:
    env = make(SHORT, on_lost="mask")
    _, reward, terminated, truncated, info = expired(env)
    assert math.isnan(reward) and info["is_masked"] and (terminated, truncated) == (False, True)
    env.tasks = (HELLO,)
    env.reset()
    env.step("echo hello > out")
    assert env.step(SUBMIT)[1] == 1.0, "the next episode counts again"


def test_a_sandbox_that_its_agent_killed_is_a_zero(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make()
    env.reset()

    async def dead(self: Sandbox, *args: Any, **more: Any) -> Any:
        raise SandboxDied(self.id, Reason.OUT_OF_MEMORY)

    monkeypatch.setattr(Sandbox, "call_logged", dead)
    _, reward, terminated, _, info = env.step("echo hello > out")
    assert (reward, terminated, info["is_masked"]) == (0.0, True, False)


def test_a_seed_draws_the_task_and_an_option_names_it(make: Make) -> None:
    env = make((HELLO, OTHER))
    drawn = [env.reset(seed=seed)[1]["task"] for seed in (1, 1, 2, 3, 4)]
    assert drawn[0] == drawn[1] and set(drawn) == {"hello", "other"}
    assert env.reset(options={"task": "other"})[0] == OTHER.prompt
    with pytest.raises(ValueError, match="no task 'third'"):
        env.reset(options={"task": "third"})


def test_gymnasium_finds_nothing_wrong(make: Make) -> None:
    check_env(make(), skip_render_check=True)


def test_environments_work_side_by_side(make: Make) -> None:
    env = gym.vector.SyncVectorEnv([make, make])
    observations, _ = env.reset(seed=0)
    assert observations == (HELLO.prompt,) * 2
    observations, rewards, *_ = env.step(("echo a", "echo b"))
    assert observations == ("a", "b") and list(rewards) == [0.0, 0.0]


def test_the_space_holds_every_string_and_nothing_else() -> None:
    space = AnyText(seed=0)
    assert "\u00e4\n\0" in space and b"a" not in space and space.sample() in space
    assert space == AnyText()
