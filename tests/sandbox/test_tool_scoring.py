"""Work is judged where its author cannot reach; what the machine did wrong is no zero (known failures B182, B183)."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benthic.errors import ConfigError, SandboxError
from benthic.sandbox import Sandbox
from benthic.sandbox.errors import SandboxDied
from benthic.sandbox.probe import local_host
from benthic.sandbox.records import Command, Limits, Reason, SandboxSpec
from benthic.sandbox.tools import (
    AnswerCheck,
    CallCheck,
    FileCheck,
    OutputCheck,
    ReportCheck,
    Reward,
    SandboxEnvironment,
    Task,
)
from benthic.sandbox.tools.scoring import death_reward, prepare, score
from benthic.sandbox.tools.task import Check
from tests.sandbox.kinds import require_kind

FUNCTION = SandboxSpec(kind="function", limits=Limits(memory_bytes=128 << 20, num_processes=32))
RUNNER = b"""
import json, subprocess, sys
secret = sys.stdin.readline().strip()
run = "import json, sys; sys.path.insert(0, '/work'); from solution import add; print(json.dumps(add(2, 3)))"
done = subprocess.run([sys.executable, "-I", "-c", run], stdin=subprocess.DEVNULL, capture_output=True, text=True)
if done.returncode == 0 and done.stdout.strip() == "5":
    print(secret, "passed", "adds")
"""
ADD = Task(
    id="add",
    prompt="Write add(a, b) into /work/solution.py.",
    spec=FUNCTION,
    files=(("/work/README", b"Add numbers.\n"),),
    protected=("/work/README",),
    hidden_files=(("/work/judge.py", RUNNER),),
    checks=(
        CallCheck(
            name="calls", file="/work/solution.py", function="add", cases=(((2, 3), 5), ((-1, 1), 0)), timeout_s=2.5
        ),
        OutputCheck(
            name="prints",
            command=Command(
                shell="cd /work && python3 -c 'import solution; print(solution.add(20, 22))'", timeout_s=2.5
            ),
            stdout=b"42\n",
        ),
        ReportCheck(
            name="report", command=Command(argv=("python3", "/work/judge.py"), timeout_s=2.5), passed=("adds",)
        ),
    ),
)
GOOD = "def add(a, b):\n    return a + b\n"
FAKE = 'import sys\nprint("passed adds"); print({"value": 5})\n'
CHEATS = {
    "a syntax error": "def add(a, b:\n",
    "exit at import": "import sys\nsys.exit(0)\n",
    "a hard exit at import": "import os\nos._exit(0)\n",
    "a hard exit when called": "import os\ndef add(a, b):\n    os._exit(0)\n",
    "a printed report": FAKE + "def add(a, b):\n    print('passed adds')\n",
    "a killed parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\ndef add(a, b):\n    return 1\n",
    "an equal-to-everything object": (
        "class Yes(int):\n    def __eq__(self, other): return True\ndef add(a, b):\n    return Yes(1)\n"
    ),
    "a patched json": "import json\njson.dumps = lambda *a, **k: '{\"value\": 5}'\ndef add(a, b):\n    return 0\n",
    "patched subprocess": "import subprocess\nsubprocess.run = None\ndef add(a, b):\n    return None\n",
    "a bare constant": "def add(a, b):\n    return 5\n",
    "an endless loop": "def add(a, b):\n    while True: pass\n",
    "too much memory": "def add(a, b):\n    return len(bytearray(1 << 40))\n",
    "nothing": "",
}


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def play(root: Path, scene: Callable[[SandboxEnvironment], Awaitable[None]]) -> None:
    require_kind("function")

    async def whole() -> None:
        async with local_host(root) as host:
            environment = SandboxEnvironment(host)
            try:
                await scene(environment)
            finally:
                await environment.close()

    asyncio.run(whole())


async def judged(environment: SandboxEnvironment, task: Task, *messages: dict[str, Any]) -> Reward:
    await environment.reset(task)
    for message in messages:
        await environment.step(message)
    return await environment.score()


def test_good_work_earns_its_reward_and_no_cheat_does(tmp_path: Path) -> None:
    async def scene(environment: SandboxEnvironment) -> None:
        reward = await judged(environment, ADD, call("write_file", path="solution.py", content=GOOD))
        assert (reward.value, reward.signals) == (1.0, ()), reward
        for name, text in CHEATS.items():
            reward = await judged(environment, ADD, call("write_file", path="solution.py", content=text))
            assert reward.value == 0.0, (name, reward)
            assert len(reward.verdicts) == 3

    play(tmp_path, scene)


STEAL = """
import os, re
judge = os.getppid()
for line in open(f"/proc/{judge}/maps"):
    first, last, mode = re.match("([0-9a-f]+)-([0-9a-f]+) (..)", line).groups()
    if mode == "rw":
        with open(f"/proc/{judge}/mem", "rb") as memory:
            memory.seek(int(first, 16))
            for secret in set(re.findall(b"[0-9a-f]{32}", memory.read(int(last, 16) - int(first, 16)))):
                os.write(os.open(f"/proc/{judge}/fd/1", os.O_WRONLY), secret + b" passed adds\\n")
"""
REPLACE = """
import os
os.rename("/work/judge.py", "/work/other")
open("/work/judge.py", "w").write("print(input(), 'passed', 'adds')")
def add(a, b):
    return 42
"""


@pytest.mark.parametrize(
    ("cheat", "checks"), [(STEAL, ADD.checks[2:]), (REPLACE, ADD.checks[1:])], ids=["steal", "replace"]
)
def test_no_work_reaches_into_the_hidden_program_or_puts_another_in_its_place(
    tmp_path: Path, cheat: str, checks: tuple[Check, ...]
) -> None:
    require_kind("function")
    task = replace(ADD, checks=checks)

    async def scene() -> dict[str, bool]:
        async with local_host(tmp_path) as host, Sandbox.create_from(task.spec, host=host) as box:
            await prepare(task, box)
            await box.write("/work/solution.py", cheat)
            reward = await score(task, box, submission=None, before=None, host=host)
            return {verdict.name: verdict.is_passed for verdict in reward.verdicts}

    passed = asyncio.run(scene())
    assert passed["report"] is False
    assert passed.get("prints", True) is True


def test_what_an_agent_leaves_beside_its_work_does_not_help(tmp_path: Path) -> None:
    """Its own judge, configuration of test runners, a module named like the library's, a daemon."""
    left = """
mkdir -p json; echo 'loads = dumps = lambda *a, **k: 5' > json/__init__.py
mkdir judge.py; echo 'collect_ignore=["x"]' > conftest.py; (setsid sleep 100 &)
echo 'def add(a, b): return 7' > solution.py; ln -s /etc/passwd link; mkfifo pipe
"""

    async def scene(environment: SandboxEnvironment) -> None:
        assert (await judged(environment, ADD, call("bash", command=left))).value == 0.0

    play(tmp_path, scene)


def test_a_changed_protected_file_is_a_signal_and_no_reward(tmp_path: Path) -> None:
    async def scene(environment: SandboxEnvironment) -> None:
        good = call("write_file", path="solution.py", content=GOOD)
        reward = await judged(environment, ADD, good, call("write_file", path="README", content="mine"))
        assert (reward.value, reward.signals) == (0.0, ("protected file changed: /work/README",))
        reward = await judged(environment, ADD, good, call("bash", command="rm README; mkdir README"))
        assert (reward.value, reward.signals) == (0.0, ("protected file changed: /work/README",))

    play(tmp_path, scene)


def test_hidden_files_are_not_there_while_the_agent_works(tmp_path: Path) -> None:
    async def scene(environment: SandboxEnvironment) -> None:
        await environment.reset(ADD)
        step = await environment.step(call("bash", command="ls -a /work; cat judge.py"))
        assert "README" in step.messages[0]["content"]
        assert "judge" not in step.messages[0]["content"].partition("[stderr]")[0]

    play(tmp_path, scene)


def test_partial_rewards_answers_and_files(tmp_path: Path) -> None:
    checks = (
        AnswerCheck(name="answer", answer="7"),
        FileCheck(name="file", path="/work/a", content=b"x"),
        FileCheck(name="lost", path="/work/b", content=b"x"),
        FileCheck(name="exact", path="/work/a", content=b"x", is_exact=True),
    )
    task = Task(id="t", prompt="p", checks=checks, is_partial=True, spec=FUNCTION)

    async def scene(environment: SandboxEnvironment) -> None:
        reward = await judged(environment, task, call("bash", command="echo x > a"), call("submit", answer=" 7\n"))
        assert [verdict.is_passed for verdict in reward.verdicts] == [True, True, False, False]
        assert reward.value == 0.5

    play(tmp_path, scene)


def test_an_episode_ends_by_submission_by_saying_nothing_to_do_and_by_its_number_of_steps(tmp_path: Path) -> None:
    task = Task(id="t", prompt="p", checks=(AnswerCheck(name="a", answer="1"),), max_steps=2, spec=FUNCTION)

    async def scene(environment: SandboxEnvironment) -> None:
        await environment.reset(task)
        assert not (await environment.step(call("bash", command="true"))).is_done
        step = await environment.step(call("bash", command="true"))
        assert (step.is_done, step.is_truncated) == (True, True)
        await environment.reset(task)
        assert (await environment.step(call("submit"))).is_done
        late = await environment.step(call("bash", command="true"))
        assert late.messages[0]["content"] == "[error: the work was handed in already]"
        await environment.reset(task)
        assert (await environment.step({"role": "assistant", "content": "I am done."})).is_done

    play(tmp_path, scene)


def test_a_setup_that_fails_is_the_machines_fault(tmp_path: Path) -> None:
    task = Task(
        id="t", prompt="p", checks=(AnswerCheck(name="a", answer="1"),), setup=(Command(shell="exit 3"),), spec=FUNCTION
    )

    async def scene(environment: SandboxEnvironment) -> None:
        with pytest.raises(SandboxError, match="ended with 3") as error:
            await environment.reset(task)
        assert error.value.is_infra

    play(tmp_path, scene)


@pytest.mark.parametrize("reason", Reason)
def test_a_death_is_a_zero_only_if_the_agent_did_it(reason: Reason) -> None:
    reward = death_reward(SandboxDied("0" * 12, reason))
    is_the_agents = reason in (Reason.OUT_OF_MEMORY, Reason.OUT_OF_PROCESSES)
    assert reward.value == (0.0 if is_the_agents else None)
    assert str(reason) in reward.reason


def test_tasks_that_judge_nothing_are_refused() -> None:
    answer = AnswerCheck(name="a", answer="1")
    with pytest.raises(ConfigError, match="has no check"):
        Task(id="t", prompt="p", checks=())
    with pytest.raises(ConfigError, match="two checks alike"):
        Task(id="t", prompt="p", checks=(answer, answer))
    with pytest.raises(ConfigError, match="which is none of its files"):
        Task(id="t", prompt="p", checks=(answer,), protected=("/work/x",))
