"""A program that opens sandboxes and is killed with -9 at its n-th act, and what its successor finds afterwards.

    python -m tests.sandbox.killing ROOT KIND SEED COUNT

An act is whatever Python tells an audit hook of that changes the world: a file opened for writing, made, renamed or
removed, a program started, a socket bound. So every step of starting, snapshotting, forking and closing is a place to
die at, in whatever thread it is taken. Each round is a fork of this process: what a round costs is its sandboxes.
Prints one JSON object a round.
"""

import asyncio
import json
import os
import random
import secrets
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benthic.sandbox import LocalHost, Sandbox, SandboxSpec, State
from benthic.sandbox.driver import Driver
from benthic.sandbox.probe import all_drivers
from benthic.sandbox.records import MIB, Limits, Network
from tests.sandbox.leftovers import left

ACTS = (
    *("os.chmod", "os.chown", "os.link", "os.mkdir", "os.posix_spawn", "os.remove", "os.rename", "os.rmdir"),
    *("os.symlink", "os.truncate", "socket.bind", "socket.connect", "subprocess.Popen"),
)
LIMITS = Limits(memory_bytes=96 * MIB, disk_bytes=48 * MIB, num_files=500, num_processes=48)


class Fate:
    """Counts acts once it is armed, and ends this process at one of them."""

    def __init__(self, last: int) -> None:
        self.last, self.count, self.is_armed = last, 0, False
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.is_armed or not (event in ACTS or (event == "open" and _writes(arguments))):
            return
        self.count += 1
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


def _writes(arguments: tuple[object, ...]) -> bool:
    flags = arguments[2]
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def drivers_of(root: Path, kind: str) -> list[Driver]:
    return [driver for driver in all_drivers(root, warm_clones=1) if driver.kind == kind and driver.name != "runc"]


def spec_of(kind: str) -> SandboxSpec:
    network = Network.allow("127.0.0.2:1") if kind == "container" else Network()
    return SandboxSpec(kind=kind, limits=LIMITS, network=network)  # type: ignore[arg-type]


async def play(root: Path, kind: str, fate: Fate) -> None:
    """Uses most of what there is."""
    async with LocalHost(root, drivers_of(root, kind)) as host:
        fate.is_armed = True
        info = await host.create(spec_of(kind), key=secrets.token_hex(4))
        sandbox = await Sandbox.attach(info.id, host=host)
        await sandbox.exec("echo one > f; sleep 1000 & sleep 0")
        await sandbox.spawn("sleep 1000", terminal=(24, 80), keeps_input=True)
        await sandbox.write("/work/large", b"x" * (1 << 19))
        if kind == "function":
            assert await sandbox.call("def main(): return 1") == 1
        else:
            await host.snapshot(sandbox.id, "kept")
            (fork,) = await sandbox.fork(1)
            await fork.pause()
        await sandbox.expose(80)
        await sandbox.pause()
        await sandbox.resume()
        await (await Sandbox.create_from(spec_of(kind), host=host)).close()
        await sandbox.exec("echo two >> f")
        fate.is_armed = False


async def succeed(root: Path, kind: str) -> dict[str, object]:
    """What the next process finds: every sandbox lives or is dead, and nothing else is there; then it ends them."""
    count = 0
    while found := await closed(root, kind):  # an open fork is taken up again, and is there the next time
        count += found
        assert count < 20, "there are always more"
    async with LocalHost(root, drivers_of(root, kind)) as host:
        swept = await host.reconcile()
        await host.clear_garbage(grace_s=-1)
    return {"found": count, "swept": swept, "left": left(root)}


async def closed(root: Path, kind: str) -> int:
    """How many lived, went on and were ended."""
    async with LocalHost(root, drivers_of(root, kind)) as host:
        await host.open(adopts=True)
        found = await host.sandboxes()
        for info in found:
            if info.state is State.PAUSED:
                await host.resume(info.id)
            sandbox = await Sandbox.attach(info.id, host=host)
            assert (await sandbox.exec("echo alive", timeout_s=30)).text == "alive\n"
            await host.close(info.id)
    return len(found)


def in_a_fork(work: Callable[[], None]) -> int:
    """Its exit status; negative for a signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - a fork must not return into its parent's code
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def played(root: Path, kind: str, last: int, counted: Path) -> None:
    fate = Fate(last)
    asyncio.run(play(root, kind, fate))
    counted.write_text(str(fate.count))


def succeeded(root: Path, kind: str) -> None:
    print(json.dumps(asyncio.run(succeed(root, kind))), flush=True)


def main(root: Path, kind: str, seed: int, count: int) -> None:
    """The first round lives to its end, which also makes what is made once."""
    counted = root.with_name(f"{root.name}-acts")
    for _ in range(2):
        assert in_a_fork(partial(played, root, kind, 0, counted)) == 0
        assert in_a_fork(partial(succeeded, root, kind)) == 0
    acts = int(counted.read_text())
    points = range(1, acts + 1) if count >= acts else sorted(random.Random(seed).sample(range(1, acts + 1), count))
    for point in points:
        status = in_a_fork(partial(played, root, kind, point, counted))
        print(json.dumps({"act": point, "of": acts, "status": status}), flush=True)
        assert in_a_fork(partial(succeeded, root, kind)) == 0, point


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
