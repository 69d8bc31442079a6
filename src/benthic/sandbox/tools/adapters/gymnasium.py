"""Tasks as a Gymnasium environment: text in, text out, one sandbox an episode.

    env = SandboxEnv(tasks)
    observation, info = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("ls -l")

An action is a command for the `bash` tool, or an assistant's message as JSON. What the machine did wrong has no reward:
it is raised as `EpisodeLost`, or, where vector environments must go on, comes back as NaN under `info["is_masked"]`.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeVar

import gymnasium as gym

from benthic.errors import ConfigError, SandboxError
from benthic.sandbox.host import Host
from benthic.sandbox.probe import local_host
from benthic.sandbox.tools.environment import Message, SandboxEnvironment, Step
from benthic.sandbox.tools.task import Reward, Task

T = TypeVar("T")
OpenHost = Callable[[], AbstractAsyncContextManager[Host]]


class EpisodeLost(SandboxError):
    """The machine and not the agent ended an episode: it has no reward, and must be left out."""

    is_infra = True


class AnyText(gym.spaces.Space[str]):
    """Every string; `gymnasium.spaces.Text` wants to know all characters beforehand."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """It has no form as an array."""
        return False

    def contains(self, x: Any) -> bool:
        """Whether it is a string."""
        return isinstance(x, str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A harmless command."""
        return f"echo {self.np_random.integers(1 << 30)}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText)

    def __hash__(self) -> int:
        return hash(AnyText)

    def __repr__(self) -> str:
        return "AnyText()"


class SandboxEnv(gym.Env[str, str]):
    """See the module's docstring. One episode at a time; its event loop runs in a thread of its own."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        tasks: Task | Sequence[Task],
        *,
        host: OpenHost = local_host,
        time_limit_s: float | None = None,
        on_lost: Literal["raise", "mask"] = "raise",
    ) -> None:
        """Starts nothing yet.

        Args:
            tasks: what `reset` draws from.
            host: opens the host of its sandboxes; None of them outlives `close`.
            time_limit_s: seconds from `reset`, after which the step that is then running is the last one.
            on_lost: what to do when the machine ends an episode.
        """
        self.tasks = (tasks,) if isinstance(tasks, Task) else tuple(tasks)
        if not self.tasks:
            raise ConfigError("an environment needs a task, and was given none; pass at least one")
        self.observation_space, self.action_space = AnyText(), AnyText()
        self.time_limit_s = time_limit_s
        self._masks = on_lost == "mask"
        self._open_host = host
        self._loop: _Loop | None = None
        self._resources = AsyncExitStack()
        self._environment: SandboxEnvironment | None = None
        self._is_running = False
        self._started_s = 0.0
        self._num_calls = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """A new episode; the observation is what the task tells the agent.

        Args:
            options: `task` is the id of one of the tasks, else the seed draws one; `image` is used in place of the
                task's own.

        Raises:
            SandboxError: no sandbox came up, or the task's setup failed.
        """
        super().reset(seed=seed)
        self._is_running = False
        task = self._chosen(options or {})
        loop = self._begun()
        assert self._environment is not None
        messages = loop.run(self._environment.reset(task))
        self._is_running, self._started_s, self._num_calls = True, time.monotonic(), 0
        info = {"task": task.id, "messages": messages, "tools": self._environment.schemas}
        return _text_of(messages), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Runs a command, or the tool calls of a message. The last step has the episode's reward, others 0.

        `truncated` says that steps or time ran out; the work is judged as it stands.

        Raises:
            EpisodeLost: the machine failed, unless losses are masked.
        """
        if not self._is_running:
            raise gym.error.ResetNeeded("the episode is over, or none has begun; call reset first")
        assert self._environment is not None and self._loop is not None
        message = self._message(action)
        try:
            step = self._loop.run(self._environment.step(message))
        except SandboxError as error:
            self._is_running = False
            if not error.is_infra:
                raise
            return self._lost(str(error), error)
        late = self.time_limit_s is not None and time.monotonic() - self._started_s >= self.time_limit_s
        observation = _text_of(step.messages)
        if not step.is_done and not late:
            return observation, 0.0, False, False, {"messages": list(step.messages)}
        return self._ended(observation, step, is_truncated=step.is_truncated or not step.is_done)

    def close(self) -> None:
        """Ends the episode's sandbox, and lets go of the host."""
        self._is_running = False
        if self._loop is None:
            return
        try:
            self._loop.run(self._resources.aclose())
        finally:
            self._loop.close()
            self._loop = self._environment = None

    def _ended(
        self, observation: str, step: Step, *, is_truncated: bool
    ) -> tuple[str, float, bool, bool, dict[str, Any]]:
        assert self._environment is not None and self._loop is not None
        self._is_running = False
        reward = self._loop.run(self._environment.score())
        if reward.value is None:
            return self._lost(reward.reason, None)
        info = {"messages": list(step.messages), **_facts(reward), "is_masked": False}
        return observation, reward.value, not is_truncated, is_truncated, info

    def _lost(self, reason: str, cause: BaseException | None) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if not self._masks:
            raise EpisodeLost(f"the episode says nothing about the agent: {reason}; leave it out") from cause
        return "", float("nan"), False, True, {"is_masked": True, "reason": reason}

    def _chosen(self, options: dict[str, Any]) -> Task:
        unknown = options.keys() - {"task", "image"}
        if unknown:
            raise ConfigError(f"reset has no option {sorted(unknown)[0]!r}; there are 'task' and 'image'")
        named = [task for task in self.tasks if task.id == options.get("task")]
        if "task" in options and not named:
            raise ConfigError(
                f"there is no task {options['task']!r}; there are {', '.join(task.id for task in self.tasks)}"
            )
        task = named[0] if named else self.tasks[int(self.np_random.integers(len(self.tasks)))]
        return replace(task, spec=replace(task.spec, image=options["image"])) if "image" in options else task

    def _begun(self) -> "_Loop":
        """The thread and the host, from the first reset on: an environment that is made and sent elsewhere has none."""
        if self._loop is None:
            loop = _Loop()
            try:
                self._environment = loop.run(self._opened())
            except BaseException:
                loop.close()
                raise
            self._loop = loop
        return self._loop

    async def _opened(self) -> SandboxEnvironment:
        self._resources = AsyncExitStack()
        environment = SandboxEnvironment(await self._resources.enter_async_context(self._open_host()))
        self._resources.push_async_callback(environment.close)
        return environment

    def _message(self, action: str) -> Message:
        said = _assistant_message(action)
        if said is not None:
            return said
        self._num_calls += 1
        function = {"name": "bash", "arguments": json.dumps({"command": action})}
        call = {"id": f"call_{self._num_calls}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}


class _Loop:
    """An event loop in a thread: a host's own tasks go on between two steps, and a caller may have a loop running."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandbox-env", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()  # Ctrl-C while waiting: the work must not go on unseen
            raise

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _assistant_message(action: str) -> Message | None:
    """An action that is a message; anything else is a command, JSON or not."""
    if not action.lstrip().startswith("{"):
        return None
    try:
        said = json.loads(action)
    except (ValueError, RecursionError):
        return None
    is_message = isinstance(said, dict) and said.get("role") == "assistant"
    return said if is_message and isinstance(said.get("tool_calls") or [], list) else None


def _text_of(messages: Sequence[Message]) -> str:
    return "\n\n".join(str(message["content"]) for message in messages)


def _facts(reward: Reward) -> dict[str, Any]:
    passed = {verdict.name: verdict.is_passed for verdict in reward.verdicts}
    return {"reason": reward.reason, "checks": passed, "signals": list(reward.signals)}
