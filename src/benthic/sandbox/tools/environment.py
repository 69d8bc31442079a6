"""Episodes: an agent's messages in, observations out, a reward at the end; and a way back after a preemption.

The sandbox's trajectory log is the tool-side half of a rollout's own log. A checkpoint is (sandbox id, place); on the
way back the saved messages are played to the sandbox once more, which answers what it had done from its log.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benthic.sandbox.errors import SandboxDied, TrajectoryDiverged
from benthic.sandbox.host import Host
from benthic.sandbox.records import Checkpoint
from benthic.sandbox.sandbox import Sandbox
from benthic.sandbox.tools.integrity import Fingerprint, fingerprint
from benthic.sandbox.tools.scoring import death_reward, prepare, score
from benthic.sandbox.tools.task import Reward, Task
from benthic.sandbox.tools.toolbox import Toolbox

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What follows one message of the agent."""

    messages: tuple[Message, ...]
    """A tool message for each of its calls, in their order."""
    is_done: bool
    is_truncated: bool = False
    """It ended because steps ran out and not by itself."""


class Environment(Protocol):
    """What a rollout needs of an environment."""

    async def reset(self, task: Task) -> list[Message]:
        """A new episode: the first messages."""

    async def step(self, message: Message) -> Step:
        """Runs the tool calls of an assistant's message."""

    async def score(self) -> Reward:
        """What the episode was worth; it can be asked for at any time."""


class SandboxEnvironment:
    """An environment whose world is one sandbox. One episode at a time."""

    def __init__(self, host: Host | None = None) -> None:
        self._host = host
        self._task: Task | None = None
        self._sandbox: Sandbox | None = None
        self._tools: Toolbox | None = None
        self._before: Fingerprint | None = None
        self._death: SandboxDied | None = None
        self._num_steps = 0
        self.last_step: Step | None = None
        """What the newest message led to; None before the first."""

    @property
    def sandbox(self) -> Sandbox:
        """The running episode's."""
        assert self._sandbox is not None, "reset comes first"
        return self._sandbox

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools of the running episode, for a request's `tools`."""
        return self._toolbox.schemas

    async def checkpoint(self) -> Checkpoint:
        """To be kept beside the transcript."""
        return await self.sandbox.checkpoint()

    async def reset(self, task: Task, *, key: str | None = None) -> list[Message]:
        """Starts an episode in a new sandbox; a key that was used before gives the sandbox that was made for it."""
        await self.close()
        await self._begin(task, await Sandbox.create_from(task.spec, host=self._host, key=key))
        return first_messages(task)

    async def resume(self, task: Task, checkpoint: Checkpoint, transcript: Sequence[Message]) -> list[Message]:
        """Goes on with an episode whose process was lost. Nothing that has run runs again.

        Args:
            transcript: the messages so far; those of the assistant are needed, others are compared if there.

        Returns:
            The whole transcript, with observations that the log has and the given one lacks.

        Raises:
            TrajectoryDiverged: the transcript is not that of this sandbox.
        """
        await self.close()
        await self._begin(task, await Sandbox.resume_from(checkpoint.sandbox_id, host=self._host, rebuilds=True))
        messages = first_messages(task)
        for message in transcript:
            if message["role"] == "assistant":
                messages.append(message)
                messages += (await self.step(message)).messages
        _require_same(transcript, messages)
        return messages

    async def step(self, message: Message) -> Step:
        """Runs every call of a message in order. A message without calls ends the episode.

        A sandbox that dies of the agent's doing ends the episode; its score says so.
        """
        self._num_steps += 1
        answers: list[Message] = []
        is_lost = False
        calls = message.get("tool_calls") or []
        try:
            for call in calls:
                answers.append(await self._toolbox(call))
        except SandboxDied as error:
            self._death, is_lost = error, True
        is_over = is_lost or not calls or self._toolbox.submission is not None
        is_truncated = not is_over and self._num_steps >= self._current.max_steps
        self.last_step = Step(messages=tuple(answers), is_done=is_over or is_truncated, is_truncated=is_truncated)
        return self.last_step

    async def score(self) -> Reward:
        """Judges the episode; see `scoring.score`."""
        if self._death is not None:
            return death_reward(self._death)
        submission = self._toolbox.submission
        return await score(self._current, self.sandbox, submission=submission, before=self._before, host=self._host)

    async def close(self) -> None:
        """Ends the episode's sandbox."""
        if self._sandbox is not None:
            await self._sandbox.close()
        self._forget()

    async def detach(self) -> None:
        """Lets go of the episode and leaves its sandbox alive, for `resume` elsewhere."""
        if self._sandbox is not None:
            await self._sandbox.detach()
        self._forget()

    def _forget(self) -> None:
        self._task = self._sandbox = self._tools = self._before = self._death = None
        self._num_steps = 0
        self.last_step = None

    async def _begin(self, task: Task, sandbox: Sandbox) -> None:
        self._task, self._sandbox = task, sandbox
        self._tools = Toolbox(sandbox, task.tools, timeout_s=task.command_timeout_s)
        await prepare(task, sandbox)
        self._before = await fingerprint(sandbox)

    @property
    def _current(self) -> Task:
        assert self._task is not None, "reset comes first"
        return self._task

    @property
    def _toolbox(self) -> Toolbox:
        assert self._tools is not None, "reset comes first"
        return self._tools


def _require_same(saved: Sequence[Message], played: Sequence[Message]) -> None:
    """What was kept of observations must be what the sandbox says now."""
    observed = {message["tool_call_id"]: message for message in played if message["role"] == "tool"}
    for message in saved:
        if message["role"] == "tool" and observed.get(message["tool_call_id"]) != message:
            raise TrajectoryDiverged(
                f"the transcript has {message!r}, and the sandbox {observed.get(message['tool_call_id'])!r}"
            )


def first_messages(task: Task) -> list[Message]:
    """What an agent is told at the start."""
    system = [{"role": "system", "content": task.system}] if task.system else []
    return [*system, {"role": "user", "content": task.prompt}]
