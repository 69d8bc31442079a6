"""An agent's loop: generate, act, observe, until the work is handed in; with a journal that survives kill -9.

The journal has a line a message, on disk before the next step begins. Running the same episode again with the same
journal goes on where it stopped: what the model has said is read, what the sandbox has done comes from its log.
"""

import json
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benthic.errors import DataError
from benthic.sandbox.records import Checkpoint
from benthic.sandbox.tools.environment import Message, SandboxEnvironment
from benthic.sandbox.tools.task import Reward, Task

Generate = Callable[[list[Message], list[dict[str, Any]]], Awaitable[Message]]
"""The transcript and the tools' schemas in, the assistant's message out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """How it went."""

    messages: tuple[Message, ...]
    reward: Reward
    is_truncated: bool
    num_replayed: int
    """Assistant's messages that came from the journal."""


async def run_episode(
    environment: SandboxEnvironment, task: Task, generate: Generate, *, journal: Path | None = None
) -> Episode:
    """Runs a task to its reward and closes its sandbox.

    Args:
        journal: a file that is made, or gone on with.

    Raises:
        DataError: the journal is another task's.
        TrajectoryDiverged: the journal is not the sandbox's.
    """
    notes = Journal(journal, task)
    messages = await _begin(environment, task, notes)
    num_replayed = sum(message["role"] == "assistant" for message in messages)
    step = environment.last_step
    while step is None or not step.is_done:
        said = await generate(messages, environment.schemas)
        notes.write(said)
        messages.append(said)
        step = await environment.step(said)
        messages += step.messages
    reward = await environment.score()
    await environment.close()
    return Episode(messages=tuple(messages), reward=reward, is_truncated=step.is_truncated, num_replayed=num_replayed)


async def _begin(environment: SandboxEnvironment, task: Task, notes: "Journal") -> list[Message]:
    if notes.sandbox_id is not None:
        return await environment.resume(task, Checkpoint(notes.sandbox_id, -1, ""), notes.said)
    messages = await environment.reset(task, key=notes.key)
    notes.keep_sandbox(environment.sandbox.id)
    return messages


class Journal:
    """The lines of one episode: its task and key, its sandbox, then every message of the model."""

    def __init__(self, path: Path | None, task: Task) -> None:
        self._path = path
        self.key = secrets.token_hex(8)
        self.sandbox_id: str | None = None
        self.said: list[Message] = []
        lines = self._read()
        if not lines:
            self._append({"task": task.id, "key": self.key})
            return
        if lines[0].get("task") != task.id:
            raise DataError(f"{path} is of task {lines[0].get('task')!r} and not of {task.id!r}; name another file")
        self.key = lines[0]["key"]
        for line in lines[1:]:
            if "sandbox" in line:
                self.sandbox_id = line["sandbox"]
            else:
                self.said.append(line["said"])

    def keep_sandbox(self, sandbox_id: str) -> None:
        """The episode's sandbox is known."""
        self.sandbox_id = sandbox_id
        self._append({"sandbox": sandbox_id})

    def write(self, said: Message) -> None:
        """The model has said this; what it asks for may begin."""
        self._append({"said": said})

    def _append(self, line: dict[str, Any]) -> None:
        if self._path is None:
            return
        with self._path.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> list[dict[str, Any]]:
        """Whole lines; one that a crash has cut is as if it had never been, and is cut off."""
        if self._path is None or not self._path.exists():
            return []
        data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            os.truncate(self._path, len(whole))
        return [json.loads(line) for line in whole.splitlines()]
