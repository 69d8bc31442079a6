"""The kinds of sandbox that this machine can start, each behind the same few calls, for tests that hold for all."""

import asyncio
import errno
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from benthic.sandbox import Command, Limits, Result, SandboxSpec
from benthic.sandbox.driver import Driver, Machine
from benthic.sandbox.drivers.container import ContainerDriver
from benthic.sandbox.drivers.function import FunctionDriver
from benthic.sandbox.drivers.microvm import microvm_driver
from benthic.sandbox.drivers.vm import vm_driver
from benthic.sandbox.guest import Guest
from benthic.sandbox.images import Store
from benthic.sandbox.records import MIB
from tests.sandbox.kinds import require_driver, require_kind

LIMITS = Limits(
    memory_bytes=96 * MIB,
    num_processes=48,
    disk_bytes=24 * MIB,
    num_files=300,
    file_bytes=16 * MIB,
    num_open_files=100,
    output_bytes=4096,
)
DRIVERS: dict[str, Callable[[Path, Store], Driver]] = {
    "function": FunctionDriver,
    "crun": lambda root, store: ContainerDriver(root, store, runtime="crun"),
    "runc": lambda root, store: ContainerDriver(root, store, runtime="runc"),
    "gvisor": lambda root, store: ContainerDriver(root, store, runtime="gvisor"),
    "docker": lambda root, store: docker_driver(root, store),
    "microvm": microvm_driver,
    "vm": vm_driver,
}
SHARED_KERNEL = ("function", "crun", "runc", "docker")
"""Kinds whose system calls go to the host's kernel."""
T = TypeVar("T")
HOSTILE = "/work/hostile"


class Inside:
    """One sandbox, its driver, and blocking calls for commands in it."""

    neighbour: "Inside"
    """Another sandbox of the kind."""

    def __init__(self, kind: str, root: Path, store: Store, hostile: bytes) -> None:
        self.kind, self.hostile = kind, hostile
        self.driver = DRIVERS[kind](root, store)
        self._root = root
        self._runner = asyncio.Runner()
        self.machine = self._runner.run(self._start())

    def run(self, shell: str, *, timeout_s: float = 30.0, user: str | None = None) -> Result:
        """One shell command."""
        return self._runner.run(self._run(Command(shell=shell, timeout_s=timeout_s, user=user)))

    def attack(self, *words: object, timeout_s: float = 30.0, user: str | None = None) -> Result:
        """One deed of hostile.c."""
        argv = (HOSTILE, *map(str, words))
        return self._runner.run(self._run(Command(argv=argv, timeout_s=timeout_s, user=user)))

    def errors(self, *words: object, user: str | None = None) -> list[str]:
        """What each line of a deed's answer names: `EPERM` and the like, or `done`."""
        result = self.attack(*words, user=user)
        assert result.returncode == 0, result
        return ["done" if word == "0" else errno.errorcode[int(word)] for word in result.text.split()]

    def is_alive(self) -> bool:
        """Whether a command still runs in it, within some seconds."""
        return self.run("echo alive", timeout_s=10).text == "alive\n"

    async def _run(self, command: Command) -> Result:
        job = uuid.uuid4().hex
        result = await self.guest.run(job, command)
        await self.guest.forget(job)
        return result

    def wait(self, coroutine: Coroutine[object, object, T]) -> T:
        """Runs a coroutine on the sandbox's loop."""
        return self._runner.run(coroutine)

    async def _start(self) -> Machine:
        self._home = home = self._root / "homes" / uuid.uuid4().hex[:12]
        home.mkdir(parents=True)
        machine = await self.driver.start(SandboxSpec(kind=self.driver.kind, limits=LIMITS), home)
        self.guest = await Guest.attach(machine.connect)
        await self.guest.configure(replace(machine.setup, cwd="/work", output_bytes=LIMITS.output_bytes))
        await self.guest.files.write(HOSTILE, self.hostile, mode=0o755)
        return machine

    def restore(self) -> None:
        """Puts hostile.c's program back where it was."""
        self._runner.run(self.guest.files.write(HOSTILE, self.hostile, mode=0o755))

    def sweep(self) -> None:
        """Nothing of any sandbox is left when all are closed."""
        with asyncio.Runner() as runner:
            assert runner.run(self.driver.reconcile([])) == []

    def close(self) -> None:
        """Ends it."""
        self._runner.run(self.guest.close())
        self._runner.run(self.machine.destroy())
        shutil.rmtree(self._home)
        self._runner.close()


def compile_hostile(folder: Path) -> bytes:
    """The program of hostile.c."""
    compiler = shutil.which("musl-gcc") or shutil.which("gcc")
    assert compiler is not None
    source = Path(__file__).with_name("hostile.c")
    made = folder / "hostile"
    flags = ["-std=gnu11", "-O1", "-static", "-s", "-pthread"]
    subprocess.run([compiler, *flags, "-o", str(made), str(source)], check=True, timeout=60)
    return made.read_bytes()


def require(kind: str) -> None:
    """Skips the test if this machine lacks what a kind, or a driver of containers, needs."""
    match kind:
        case "crun":
            require_kind("container")
        case "runc" | "gvisor" | "docker":
            require_driver(kind)
        case "function" | "microvm" | "vm":
            if os.geteuid() != 0:
                pytest.skip("needs root")
            require_kind(kind)


def docker_driver(root: Path, store: Store) -> Driver:
    from benthic.sandbox.drivers.docker_driver import DockerDriver

    return DockerDriver(root, store)
