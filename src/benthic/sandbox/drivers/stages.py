"""How long each stage of a sandbox's start took, so that a failed one says where its time went."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benthic.sandbox.errors import StartFailed


@dataclass(slots=True)
class Stages:
    """The stages of one start, in their order."""

    what: str
    """Such as `container 0123456789ab`."""
    seconds: dict[str, float] = field(default_factory=dict)
    current: str = ""
    """The one that runs, or that failed."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times a block; one that raises stays the current one."""
        self.current = name
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
        self.current = ""

    def failure(self, error: BaseException) -> StartFailed:
        """What to raise for an error of the current stage."""
        times = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in self.seconds.items())
        stage = self.current or "start"
        return StartFailed(f"{self.what} did not start: {stage}: {error} (after {times or 'no time'})", stage=stage)
