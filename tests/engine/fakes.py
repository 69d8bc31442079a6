"""An engine without a model: it counts, keeps books like a real one, and goes wrong on demand, also in a child process.

What a prompt begins with decides what happens to it: see the constants.
"""

import json
import math
import os
import signal
import struct
import time
from collections.abc import Iterable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benthic.engine.config import EngineConfig
from benthic.engine.factory import BuiltEngine
from benthic.engine.messages import EngineFacts, EngineSpec, PauseMode
from benthic.engine.request import Event, FinalOutput, FinishReason, Request, TokenEvent
from benthic.engine.stats import EngineStats
from benthic.engine.weight_versions import WeightUpdate, WeightVersions
from benthic.errors import CheckpointError, ConfigError, RequestError, WeightsLostError

Source = str | Mapping[str, Any]

FAILS = 66
"""The step raises."""
HANGS = 67
"""The step ends only when the engine is released."""
DIES = 68
"""The process kills itself."""
STOPS = 69
"""The process stops in the middle of its next reply, as if by SIGSTOP."""
ORPHANS = 70
"""The process dies and leaves one behind that holds its pipes open for a while."""
EXHAUSTING, HANGING, LOSING, STOPPING = "exhausting", "hanging", "losing", "stopping"
"""Weights of this content run out of memory, hang, leave none, and stop the process in the middle of its reply."""
FACTORY = "tests.engine.fakes:build_fake"


def fake_spec(
    *, step_s: float = 0.0, stall_timeout_s: float = 60.0, fails_at_start: str = "", ahead: str | None = None
) -> EngineSpec:
    """A spec for a child with a fake engine.

    Args:
        ahead: what makes the engine of a process that stands by.
        fails_at_start: "config" raises ConfigError, "exit" ends the process; a path ends it while that file exists.
    """
    model = json.dumps({"step_s": step_s, "fails_at_start": fails_at_start})
    return EngineSpec(model=model, factory=FACTORY, engine=EngineConfig(stall_timeout_s=stall_timeout_s), ahead=ahead)


def build_fake(spec: EngineSpec) -> BuiltEngine:
    options = json.loads(spec.model)
    trouble = options["fails_at_start"]
    if trouble == "config":
        raise ConfigError("step_s is 'x'; it must be a number")
    if trouble == "exit" or (trouble.startswith("/") and Path(trouble).exists()):
        os._exit(7)
    facts = EngineFacts(max_model_len=1000, vocab_size=512, config=spec.engine, folder="", pid=os.getpid())
    return BuiltEngine(FakeEngine(options["step_s"]), facts)


def content_of(source: Source) -> str:
    """The text of a file, the name of a folder, what a state dict says: a fake's checksum.

    Raises:
        CheckpointError: there is nothing.
    """
    if not isinstance(source, str):
        return str(source["content"])
    path = Path(source)
    if not path.exists():
        raise CheckpointError(f"there is no checkpoint at {source}; give an existing folder")
    files = [path] if path.is_file() else sorted(path.iterdir())
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


class EngineStub:
    """What engines without a model have in common; they say what becomes of requests and weights."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.versions = WeightVersions(0)
        self.content = "at start"
        self.is_closed = False
        self.pause_mode: PauseMode | None = None
        self.live: dict[str, Any] = {}
        self.cancelled: dict[str, FinishReason] = {}

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        if request_id in self.live:
            self.cancelled[request_id] = reason

    def has_work(self) -> bool:
        return any(name in self.live for name in self.cancelled) if self.pause_mode else bool(self.live)

    def resume(self) -> None:
        self.pause_mode = None

    def idle_s(self) -> float:
        return math.inf

    @property
    def is_sound(self) -> bool:
        return True

    def flush(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True

    @property
    def version(self) -> int:
        return self.versions.current

    def know_versions(self, known: Iterable[tuple[int, str]]) -> None:
        self.versions = WeightVersions(self.version, known)

    def take_content(self, content: str, version: int | None) -> WeightUpdate:
        version = self.versions.choose(version, content, lambda: self.content)
        self.versions.installed(version, content)
        self.content = content
        return WeightUpdate(version, content, [])


class FakeEngine(EngineStub):
    """Token i of an answer is i; one token a request a step. A page for each live request."""

    def __init__(self, step_s: float = 0.0) -> None:
        super().__init__(step_s)
        self.pages: set[str] = set()
        self.generated: dict[str, list[int]] = {}
        self.num_finished = 0
        self.is_released = False

    def add(self, request: Request) -> None:
        if not request.prompt_ids:
            raise RequestError("the prompt is empty; it must hold at least 1 token", param="prompt")
        self.live[request.request_id] = request
        self.generated[request.request_id] = []
        self.pages.add(request.request_id)

    def step(self) -> list[Event]:
        events: list[Event] = [self._end(name, reason) for name, reason in self.cancelled.items()]
        self.cancelled.clear()
        if self.pause_mode:
            return events
        time.sleep(self.step_s)
        for name, request in list(self.live.items()):
            self._suffer(request.prompt_ids[0])
            made = self.generated[name]
            made.append(len(made))
            events.append(TokenEvent(name, made[-1], made[-1], None, self.version))
            if len(made) == request.params.max_tokens:
                events.append(self._end(name, "length"))
        return events

    def fail_all(self, error: str) -> list[Event]:
        self.cancelled.clear()
        return [self._end(name, "error", error) for name in list(self.live)]

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self.live),
            num_finished=self.num_finished,
            used_pages=len(self.pages),
            total_pages=64,
            weight_version=self.version,
        )

    def pause(self, mode: PauseMode) -> list[Event]:
        self.pause_mode = mode
        return [self._end(name, "cancelled") for name in list(self.live)] if mode == "abort" else []

    def update_weights(self, source: Source, version: int | None = None, checksum: str | None = None) -> WeightUpdate:
        found = content_of(source)
        if checksum not in (None, found):
            raise CheckpointError(f"the weights at {source} have checksum {found}; the sender's is {checksum}")
        if found == EXHAUSTING:
            raise MemoryError("no room for a second set of weights")
        if found == HANGING:
            time.sleep(3600)
        if found == STOPPING:
            stop_in_next_reply()
        if found == LOSING:
            raise WeightsLostError("neither the new weights nor the old ones are in place")
        return self.take_content(found, version)

    def describe(self) -> str:
        return f"fake engine: {len(self.live)} live, paused {self.pause_mode}, weights {self.content}"

    def check_laws(self) -> None:
        assert self.pages == self.live.keys(), (self.pages, self.live.keys())

    def _end(self, name: str, reason: FinishReason, error: str | None = None) -> FinalOutput:
        request = self.live.pop(name)
        self.pages.discard(name)
        self.num_finished += 1
        return FinalOutput(
            request_id=name,
            token_ids=tuple(self.generated.pop(name)),
            logprobs=None,
            finish_reason=reason,
            error=error,
            error_kind="engine" if reason == "error" else None,
            prompt_len=len(request.prompt_ids),
        )

    def _suffer(self, token: int) -> None:
        if token == FAILS:
            raise RuntimeError("the device fell off the bus")
        if token == HANGS:
            while not self.is_released:
                time.sleep(0.01)
        if token == DIES:
            os.kill(os.getpid(), signal.SIGKILL)
        if token == ORPHANS:
            if os.fork() == 0:
                time.sleep(5)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        if token == STOPS:
            stop_in_next_reply()


def stop_in_next_reply() -> None:
    Connection._send_bytes = _send_half  # type: ignore[attr-defined,method-assign]


def _send_half(connection: Connection, content: bytes) -> None:
    os.write(connection.fileno(), struct.pack("!i", len(content)) + content[: len(content) // 2])
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(3600)  # the other half never comes, whoever lets it go on
