"""A fleet of one host against the same host in this process: what gateway and agent cost, and what a resume saves.

    sudo python benchmarks/sandbox/bench_fleet.py [--kind container] [--commands 200] [--burst 300]

Gateway and agent are processes of their own on unix sockets; the client is this one. Measured: create to the first
result and a call's round trip, beside the same through `LocalHost`; resume of a trajectory, of commands of an agent's
usual size and of tiny ones, as a share of the run; a burst of creations that are all asked for at once, each closed
after its first result. One JSON line each; `load` is the machine's load average when a case began.
"""

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from bench_trajectory import PROGRAM
from measuring import show, timed

from benthic.sandbox import LocalHost, Sandbox, SandboxSpec
from benthic.sandbox.driver import Driver
from benthic.sandbox.fleet import RemoteHost
from benthic.sandbox.fleet.config import AgentConfig, GatewayConfig
from benthic.sandbox.fleet.launch import fleet_token, run_agent, run_gateway
from benthic.sandbox.host import Host
from benthic.sandbox.probe import all_drivers
from benthic.sandbox.records import KINDS, Kind

TINY = ("true",)
BURST_S = 1200.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="container", choices=KINDS)
    parser.add_argument("--creates", type=int, default=20)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--commands", type=int, default=200, help="of the trajectory that is resumed")
    parser.add_argument("--burst", type=int, default=300)
    parser.add_argument("--root", type=Path, help="folder for state; a temporary one by default")
    parser.add_argument("--part", choices=("gateway", "agent"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        asyncio.run(serve(options.part, options.root, options.kind))
        return
    with tempfile.TemporaryDirectory(prefix="bench-fleet-", dir=options.root) as folder:
        asyncio.run(measure(options, Path(folder)))


async def serve(part: str, root: Path, kind: Kind) -> None:
    """One process of the fleet."""
    token, gateway = fleet_token(root / "token"), f"unix:{root}/gateway.sock"
    if part == "gateway":
        await run_gateway(GatewayConfig(listen=gateway, state=root / "gateway.sqlite", token=token))
    else:
        listen = f"unix:{root}/agent.sock"
        await run_agent(
            AgentConfig(listen=listen, gateway=gateway, token=token, state_root=root / "host"), drivers_of(root, kind)
        )


def drivers_of(root: Path, kind: Kind) -> list[Driver]:
    return [driver for driver in all_drivers(root / "host") if driver.kind == kind]


async def measure(options: argparse.Namespace, root: Path) -> None:
    fleet_token(root / "token")
    async with LocalHost(root / "host", drivers_of(root, options.kind)) as local:
        await costs("in process", local, options)
    with started(root, options.kind):
        async with client(root) as remote:
            await wait_for_agent(remote)
            await costs("fleet", remote, options)
            await burst(remote, options.kind, options.burst)
        for name, program in (("usual", PROGRAM), ("tiny", TINY)):
            await resume(root, options, name, program)
    async with LocalHost(root / "host", drivers_of(root, options.kind)) as local:
        left = await local.sandboxes()
        for info in left:
            await local.close(info.id)
        gone = await local.reconcile()
    show("fleet", "left behind", None, sandboxes=len(left), resources=len(gone))


async def costs(system: str, host: Host, options: argparse.Namespace) -> None:
    first_s, calls_s, made = [], [], []
    for _ in range(options.creates):
        began = time.perf_counter()
        made.append(await first_result(host, options.kind))
        first_s.append(time.perf_counter() - began)
    for _ in range(options.calls):
        calls_s.append(await timed(lambda: made[0].exec(["true"])))
    for sandbox in made:
        await sandbox.close()
    show(system, f"create to first result, {options.kind}", first_s)
    show(system, f"exec true, {options.kind}", calls_s)


async def resume(root: Path, options: argparse.Namespace, name: str, program: Sequence[str]) -> None:
    async with client(root) as host:
        sandbox = await Sandbox.create_from(SandboxSpec(kind=options.kind), host=host)
        began, used = time.perf_counter(), time.process_time()
        said = await run(sandbox, options.commands, program)
        run_s, run_cpu_s = time.perf_counter() - began, time.process_time() - used
    async with client(root) as host:  # nothing is kept of the first one
        began, used = time.perf_counter(), time.process_time()
        again = await Sandbox.resume_from(sandbox.id, host=host)
        replayed = await run(again, options.commands, program)
        resume_s, resume_cpu_s = time.perf_counter() - began, time.process_time() - used
        assert replayed == said
        await again.close()
    show(
        "fleet",
        f"resume of {options.commands} {name} commands, {options.kind}",
        None,
        run_s=run_s,
        resume_s=resume_s,
        share_percent=100 * resume_s / run_s,
        us_a_replayed_call=1e6 * resume_s / options.commands,
        client_cpu_s=[round(run_cpu_s, 3), round(resume_cpu_s, 3)],
    )


async def run(sandbox: Sandbox, count: int, program: Sequence[str]) -> list[bytes]:
    return [(await sandbox.exec(program[n % len(program)].format(n=n))).stdout for n in range(count)]


async def burst(host: Host, kind: Kind, count: int) -> None:
    failures: list[str] = []

    async def once() -> float:
        began = time.perf_counter()
        try:
            sandbox = await first_result(host, kind)
        except Exception as error:  # noqa: BLE001 - counted
            failures.append(repr(error))
            return 0.0
        seconds = time.perf_counter() - began
        await sandbox.close()
        return seconds

    began = time.perf_counter()
    seconds = await asyncio.gather(*(once() for _ in range(count)))
    took_s = time.perf_counter() - began
    facts = {"took_s": took_s, "per_s": count / took_s, "failures": len(failures), "first_failure": failures[:1]}
    show("fleet", f"burst of {count}, {kind}", seconds, **facts)


async def first_result(host: Host, kind: Kind) -> Sandbox:
    sandbox = await Sandbox.create_from(SandboxSpec(kind=kind), host=host)
    assert (await sandbox.exec(["true"])).returncode == 0
    return sandbox


@contextlib.contextmanager
def started(root: Path, kind: Kind) -> Iterator[None]:
    """Gateway and agent as processes, ended with SIGTERM."""
    command = [sys.executable, __file__, "--root", str(root), "--kind", kind, "--part"]
    with (root / "log").open("ab") as log:
        parts = [
            subprocess.Popen([*command, part], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            for part in ("gateway", "agent")
        ]
    try:
        yield
    finally:
        for part in parts:
            part.terminate()
        for part in parts:
            part.wait(30)


@contextlib.asynccontextmanager
async def client(root: Path) -> AsyncIterator[RemoteHost]:
    # A host that has promised all it may refuses more for now: who asks for a burst waits.
    async with RemoteHost(f"unix:{root}/gateway.sock", token=fleet_token(root / "token"), patience_s=BURST_S) as host:
        yield host


async def wait_for_agent(host: RemoteHost) -> None:
    """Until it has sent a heartbeat with what works there."""
    while not any(entry.get("drivers") for entry in await host.connection.json("GET", "/hosts")):
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    main()
