"""Processes of a fleet in tests: started, killed with -9, and what they leave by design swept away."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from benthic.sandbox.local import LocalHost
from tests.sandbox.fleet.processes import drivers_of

REPOSITORY = Path(__file__).resolve().parents[3]


class Part:
    """One process: `python -m tests.sandbox.fleet.processes WHAT ROOT ...`."""

    def __init__(self, root: Path, *arguments: str, prefix: list[str] | None = None) -> None:
        self.root, self.arguments, self.prefix = root, arguments, prefix or []
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.root / f"{'-'.join(self.arguments[:2]).replace('/', '_')}.log"

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.sandbox.fleet.processes", self.arguments[0], str(self.root)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, *command, *self.arguments[1:]],
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    @property
    def returncode(self) -> int | None:
        assert self.process is not None
        return self.process.poll()


def sweep(state: Path, trajectories: Path | None = None, kind: str = "bare") -> None:
    """Ends the sandboxes of a state folder, which outlive their agent but must not outlive the test."""

    async def run() -> None:
        host = LocalHost(state, drivers_of(state.parent, state.name, kind), trajectories=trajectories)
        await host.open(adopts=True)
        for info in await host.sandboxes():
            if host.folders.home(info.id).exists():
                await host.close(info.id)
        await host.reconcile()
        await host.leave()

    if not state.exists():
        return
    asyncio.run(run())
    assert list((state / "homes").iterdir()) == []
