"""The processes of a fleet as a test starts and kills them: `python -m tests.sandbox.fleet.processes WHAT ROOT ...`."""

import asyncio
import sys
from pathlib import Path

from benthic.sandbox.driver import Driver
from benthic.sandbox.fleet.client import RemoteHost
from benthic.sandbox.fleet.config import AgentConfig, GatewayConfig
from benthic.sandbox.host import Answer, Request
from benthic.sandbox.probe import all_drivers
from benthic.sandbox.records import SandboxSpec
from benthic.sandbox.wire import unpack_result
from tests.sandbox.bare_driver import BareDriver

COUNTER = "counter"
SLOW_EVERY, READ_EVERY, BIG_EVERY = 7, 11, 13


def gateway_url(root: Path) -> str:
    return f"unix:{root}/gateway.sock"


async def run_gateway_of(root: Path, listen: str, lost_after_s: str) -> None:
    from benthic.sandbox.fleet.launch import fleet_token, run_gateway

    token = fleet_token(root / "token")
    await run_gateway(
        GatewayConfig(listen=listen, state=root / "gateway.sqlite", token=token, lost_after_s=float(lost_after_s))
    )


async def run_agent_of(
    root: Path, name: str, listen: str, gateway: str, trajectories: str = "", kind: str = "bare"
) -> None:
    from benthic.sandbox.fleet.launch import fleet_token, run_agent  # a second of imports, which clients need not pay

    config = AgentConfig(
        listen=listen,
        name=name,
        gateway=gateway,
        token=fleet_token(root / "token"),
        state_root=root / name,
        trajectories=Path(trajectories) if trajectories else None,
        heartbeat_s=0.2,
        min_free_memory_bytes=0,
    )
    await run_agent(config, drivers_of(root, name, kind))


def drivers_of(root: Path, name: str, kind: str) -> list[Driver]:
    """What a host of that name can make: a kind's own drivers, or the one without isolation."""
    if kind != "bare":
        return [driver for driver in all_drivers(root / name) if driver.kind == kind]
    driver = BareDriver(root / name)
    driver.work = root / "work"  # the same on every host, as it is with drivers that isolate
    driver.work.mkdir(exist_ok=True)
    return [driver]


def spec_of(root: Path, kind: str) -> SandboxSpec:
    if kind == "bare":
        return SandboxSpec(kind="container", ttl_s=None, cwd=f"{root}/work")
    return SandboxSpec(kind=kind, ttl_s=None)  # type: ignore[arg-type]


async def run_client(root: Path, key: str, num_calls: int, kind: str = "bare") -> None:
    """The program of a trajectory: each command adds its own line to a file, and says how many there are.

    It keeps nothing: started again it makes the same calls, and what it is told goes to a new transcript.
    """
    transcript = root / f"{key}.{len(list(root.glob(f'{key}.*')))}"
    with transcript.open("w", buffering=1) as said:
        async with RemoteHost(gateway_url(root), token=(root / "token").read_text().strip(), patience_s=60.0) as host:
            info = await host.create(spec_of(root, kind), key=key)
            said.write(f"sandbox {info.id}\n")
            for seq in range(num_calls):
                answer = await host.call(info.id, seq, request_of(info.spec.cwd, seq))
                said.write(f"{seq} {text_of(answer)}\n")


def request_of(cwd: str, seq: int) -> Request:
    if seq % READ_EVERY == READ_EVERY - 1:
        return Request(verb="read", arguments={"path": f"{cwd}/{COUNTER}"})
    slowly = "sleep 0.05; " if seq % SLOW_EVERY == 0 else ""
    loudly = "; head -c 300000 /dev/zero | tr '\\0' x" if seq % BIG_EVERY == 0 else ""
    shell = f"{slowly}echo {seq} >> {COUNTER}; wc -l < {COUNTER}{loudly}"
    return Request(verb="exec", arguments={"shell": shell})


def text_of(answer: Answer) -> str:
    assert answer.error is None, answer
    if not answer.value:
        return f"read {len(answer.data)}"
    result = unpack_result(answer.value, answer.data)
    assert result.returncode == 0, result
    return f"{result.stdout.split()[0].decode()} {len(result.stdout)}"


if __name__ == "__main__":
    what, root, arguments = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    match what:
        case "gateway":
            asyncio.run(run_gateway_of(root, *arguments))
        case "agent":
            asyncio.run(run_agent_of(root, *arguments))
        case "client":
            asyncio.run(run_client(root, arguments[0], int(arguments[1]), *arguments[2:]))
