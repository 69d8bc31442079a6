"""Requests to an engine that runs elsewhere, and their answers."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benthic.engine.handle import EngineHandle
from benthic.engine.request import Event, FinalOutput, Request
from benthic.engine.sampling import SamplingParams

DEADLINE_S = 60.0


def request_of(
    name: str, prompt: tuple[int, ...] = (5, 6, 7), *, timeout_s: float | None = None, **params: object
) -> Request:
    """A request for 4 tokens unless `params` ask otherwise."""
    defaults: dict[str, object] = {"max_tokens": 4, "seed": 1, "top_k": 1, "ignore_eos": True}
    return Request(
        request_id=name,
        timeout_s=timeout_s,
        prompt_ids=prompt,
        params=SamplingParams(**(defaults | params)),  # type: ignore[arg-type]
    )


def receive_finals(engine: EngineHandle, count: int) -> dict[str, FinalOutput]:
    """The next `count` final outputs; each must be the only one of its request."""
    finals: dict[str, FinalOutput] = {}
    end = time.monotonic() + DEADLINE_S
    while len(finals) < count:
        assert time.monotonic() < end, f"only {sorted(finals)} ended"
        for event in engine.receive(timeout_s=1.0):
            if isinstance(event, FinalOutput):
                assert event.request_id not in finals, "two final outputs"
                finals[event.request_id] = event
    return finals


def first_event(engine: EngineHandle) -> Event:
    """The next event."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        if events := engine.receive(timeout_s=1.0):
            return events[0]
    raise AssertionError("nothing came")


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether the condition comes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def held() -> tuple[int, int, int]:
    """What this process holds: file descriptors, threads, children (zombies included)."""
    children = sum(_children_of(task) for task in Path("/proc/self/task").iterdir())
    return len(os.listdir("/proc/self/fd")), threading.active_count(), children


def _children_of(task: Path) -> int:
    """Children of one thread; none of one that has ended since it was listed: another thread inherits them."""
    try:
        return len((task / "children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        return 0


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
