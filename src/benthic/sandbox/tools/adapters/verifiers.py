"""Tasks as a taskset of `verifiers` (its v1), and the harness that plays them in sandboxes.

    class Adding(SandboxTaskset):
        def sandbox_tasks(self) -> Iterable[Task]:
            yield Task(id="add", prompt=..., checks=...)

    __all__ = ["Adding", "SandboxHarness"]     # a module or package of these two is the environment

The harness runs in the evaluating process, asks the model through verifiers' own endpoint, and sends the model's tool
calls to a sandbox; verifiers' runtime stays empty, so let it be `subprocess`. What the machine did wrong is a
`SandboxError` of verifiers on the trace, whose reward is then None: never a 0 that a trainer would learn from.
"""

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx
import verifiers.v1 as vf
from openai import AsyncOpenAI
from pydantic import PrivateAttr

from benthic.errors import ConfigError, SandboxError
from benthic.sandbox.probe import local_host
from benthic.sandbox.tools.environment import Message, SandboxEnvironment
from benthic.sandbox.tools.task import Reward, Task

_MODEL_RETRIES = 2


class SandboxState(vf.State):
    """What one rollout holds in this process; none of it is part of its trace."""

    _task: Task | None = PrivateAttr(None)
    _root: Path | None = PrivateAttr(None)
    _environment: SandboxEnvironment | None = PrivateAttr(None)
    _resources: AsyncExitStack = PrivateAttr(default_factory=AsyncExitStack)

    def choose(self, task: Task, root: Path | None) -> None:
        """The task is known; nothing is started."""
        self._task, self._root = task, root

    async def start(self) -> None:
        """A sandbox with the task's files in it."""
        if self._task is None:
            raise ConfigError("the harness of sandboxes plays a SandboxTask, and was given another task")
        host = await self._resources.enter_async_context(local_host(self._root))
        self._environment = SandboxEnvironment(host)
        self._resources.push_async_callback(self._environment.close)
        await self._environment.reset(self._task)

    async def stop(self) -> None:
        """Ends the sandbox; may be called at any time."""
        self._environment = None
        await self._resources.aclose()

    @property
    def environment(self) -> SandboxEnvironment:
        """The world of the rollout.

        Raises:
            ConfigError: another harness than ours played the task.
        """
        if self._environment is None:
            raise ConfigError("there is no sandbox: a SandboxTask is played by SandboxHarness, and by no other harness")
        return self._environment


class SandboxTask(vf.Task[vf.TaskData, SandboxState, vf.TaskConfig]):
    """One task. What judges the work stays in this process: it is no part of the data that is sent and recorded."""

    def __init__(self, task: Task, root: Path | None = None, config: vf.TaskConfig | None = None) -> None:
        super().__init__(vf.TaskData(id=task.id, prompt=task.prompt, system_prompt=task.system), config)
        self.task, self.root = task, root

    @property
    def key(self) -> str:
        """The task's own id: two tasks may say the same and be judged differently."""
        return self.task.id

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """Tells the rollout which task it plays."""
        trace.state.choose(self.task, self.root)

    @vf.reward
    async def work(self, trace: vf.Trace) -> float:
        """What the work is worth; the checks go to the trace's metrics, reason and signals to its info.

        Raises:
            SandboxError: the machine failed (verifiers' error, which voids the rollout).
        """
        with _vf_errors():
            reward: Reward = await trace.state.environment.score()
        trace.info["sandbox"] = {"reason": reward.reason, "signals": list(reward.signals)}
        if reward.value is None:
            raise vf.SandboxError(reward.reason)
        for verdict in reward.verdicts:
            trace.record_metric(f"check_{verdict.name}", float(verdict.is_passed))
        return reward.value


class SandboxTasksetConfig(vf.TasksetConfig):
    """Under `--env.taskset.*`."""

    root: Path | None = None
    """Where this machine keeps its sandboxes; None takes the usual place."""


class SandboxTaskset(vf.Taskset[SandboxTask, SandboxTasksetConfig]):
    """Tasks of this package for verifiers; a subclass says which."""

    @abstractmethod
    def sandbox_tasks(self) -> Iterable[Task]:
        """The tasks, in an order that stays."""

    def load(self) -> Iterator[SandboxTask]:
        """The same for verifiers."""
        for task in self.sandbox_tasks():
            yield SandboxTask(task, self.config.root, self.config.task)


class SandboxHarness(vf.Harness[vf.HarnessConfig]):
    """Plays a SandboxTask: the model speaks, its tool calls run in the sandbox, until it submits or steps run out."""

    APPENDS_SYSTEM_PROMPT: ClassVar[bool] = True
    EXECUTES_CODE: ClassVar[bool] = False  # in verifiers' runtime: what the model writes runs in the sandbox alone
    NEEDS_CONTAINER: ClassVar[bool] = False

    async def session(self, ctx: Any, trace: vf.Trace, *args: Any, **more: Any) -> vf.HarnessSession:
        """Starts the sandbox, within the time for setup."""
        with _vf_errors():
            await trace.state.start()
        return await super().session(ctx, trace, *args, **more)

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """One episode, up to its scoring."""
        environment: SandboxEnvironment = trace.state.environment
        messages = self._first_messages(data)
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=_MODEL_RETRIES, timeout=None) as model:
            while True:
                said = await _ask(model, ctx.model, messages, environment.schemas)
                messages.append(said)
                with _vf_errors():
                    step = await environment.step(said)
                messages += step.messages
                if step.is_done:
                    break
        if step.is_truncated:
            trace.stop("max_turns")
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    async def cleanup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """Ends the sandbox, however the rollout went."""
        await trace.state.stop()

    def _first_messages(self, data: vf.TaskData) -> list[Message]:
        system, prompt = self.resolve_prompt(data)
        first = [{"role": "system", "content": system}] if system is not None else []
        if isinstance(prompt, str):
            return [*first, {"role": "user", "content": prompt}]
        return [*first, *(message.model_dump(mode="json", exclude_none=True) for message in prompt or ())]


async def _ask(model: AsyncOpenAI, name: str, messages: list[Message], tools: list[dict[str, Any]]) -> Message:
    body = {"model": name, "messages": messages, "tools": tools}
    response = await model.post("/chat/completions", cast_to=httpx.Response, body=body)
    said: Message = json.loads(response.content)["choices"][0]["message"]
    return said


@contextmanager
def _vf_errors() -> Iterator[None]:
    """The machine's failures in verifiers' words; others keep their own and count as the task's or the harness's."""
    try:
        yield
    except SandboxError as error:
        if not error.is_infra:
            raise
        raise vf.SandboxError(str(error)) from error
