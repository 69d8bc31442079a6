"""What the gateway does when hosts refuse, fall silent, come back, or have what nobody asked for."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benthic.errors import CapacityError, RequestError
from benthic.sandbox.errors import HostUnreachable, QuotaExceeded, SandboxDied, StartFailed
from benthic.sandbox.fleet.projects import Quota
from benthic.sandbox.fleet.status import Capacity
from benthic.sandbox.host import Request
from benthic.sandbox.records import Limits, Reason, SandboxSpec, SnapshotRef, State
from tests.sandbox.fleet.fake_host import FakeHost
from tests.sandbox.fleet.small_fleet import FLEET_TOKEN, small_fleet

SPEC = SandboxSpec(limits=Limits(cpus=1.0))
TWO = ("h1", "h2")


def command(text: str) -> Request:
    return Request(verb="exec", arguments={"shell": text})


def test_a_burst_is_spread_over_the_hosts_and_none_of_it_fails(tmp_path: Path) -> None:
    async def scene() -> None:
        async with small_fleet(tmp_path, ("h1", "h2", "h3")) as fleet:
            client = fleet.client(patience_s=60.0)
            for host in fleet.hosts.values():
                host.start_s = 0.01
            infos = await asyncio.gather(*(client.create(SPEC) for _ in range(60)))
            assert len({info.id for info in infos}) == 60
            shares = [host.num_creates for host in fleet.hosts.values()]
            assert sum(shares) == 60
            assert min(shares) >= 10
            assert max(host.peak_starting for host in fleet.hosts.values()) <= 4

    asyncio.run(scene())


def test_a_host_that_refuses_is_passed_over_and_a_full_fleet_says_so(tmp_path: Path) -> None:
    async def scene() -> None:
        room = Capacity(cpus=2.0, memory_bytes=1 << 50, num_sandboxes=9)
        async with small_fleet(tmp_path, TWO, capacity=room) as fleet:
            client = fleet.client(patience_s=0.3)
            made = [await client.create(SPEC) for _ in range(4)]
            assert {name: host.num_creates for name, host in fleet.hosts.items()} == {"h1": 2, "h2": 2}
            with pytest.raises(CapacityError, match="none of 2 hosts has room"):
                await client.create(SPEC, key="fifth")
            await client.close(made[0].id)
            assert (await client.create(SPEC, key="fifth")).state is State.RUNNING

    asyncio.run(scene())


def test_a_race_of_creations_does_not_pass_the_quota(tmp_path: Path) -> None:
    async def scene() -> None:
        async with small_fleet(tmp_path, TWO) as fleet:
            fleet.state.projects.set_quota("p", Quota(max_sandboxes=5))
            client = fleet.client()
            for host in fleet.hosts.values():
                host.start_s = 0.02
            results = await asyncio.gather(*(client.create(SPEC) for _ in range(20)), return_exceptions=True)
            assert sum(isinstance(result, QuotaExceeded) for result in results) == 15
            assert sum(host.num_creates for host in fleet.hosts.values()) == 5
            with pytest.raises(QuotaExceeded):
                await client.fork(next(r.id for r in results if not isinstance(r, BaseException)), 1)

    asyncio.run(scene())


def test_a_start_that_fails_frees_its_key_and_its_quota(tmp_path: Path) -> None:
    async def scene() -> None:
        async with small_fleet(tmp_path) as fleet:
            fleet.state.projects.set_quota("p", Quota(max_sandboxes=1))
            host, client = fleet.hosts["h1"], fleet.client()

            async def fail(*_: Any, **__: Any) -> Any:
                raise StartFailed("no image", stage="mount")

            working, host.create = host.create, fail  # type: ignore[method-assign]
            with pytest.raises(StartFailed, match="no image") as caught:
                await client.create(SPEC, key="k")
            assert caught.value.stage == "mount"
            host.create = working  # type: ignore[method-assign]
            assert (await client.create(SPEC, key="k")).state is State.RUNNING

    asyncio.run(scene())


def test_a_key_asks_the_host_again_that_may_have_made_it_before_the_gateway_died(tmp_path: Path) -> None:
    async def scene() -> None:
        async with small_fleet(tmp_path, TWO) as fleet:
            client = fleet.client()
            for host in fleet.hosts.values():
                host.start_s = 0.3
            creating = asyncio.create_task(client.create(SPEC, key="k"))
            await fleet.until(lambda: any(host.num_creates for host in fleet.hosts.values()))
            await fleet.stop("gateway")
            await asyncio.sleep(0.4)  # the host has made it by now, and nobody was told
            await fleet.start_gateway()
            info = await creating
            assert sum(host.num_creates for host in fleet.hosts.values()) == 1
            assert [row.id for row in fleet.state.sandboxes.alive()] == [info.id]

    asyncio.run(scene())


def test_a_silent_host_is_lost_and_what_it_ran_is_dead_for_good(tmp_path: Path) -> None:
    async def scene() -> None:
        async with small_fleet(tmp_path, TWO, lost_after_s=0.6) as fleet:
            client = fleet.client()
            infos = [await client.create(SPEC) for _ in range(6)]
            lost = [info.id for info in infos if info.id.startswith("1")]
            kept = next(info.id for info in infos if info.id.startswith("2"))
            await fleet.stop("h1")
            with pytest.raises(SandboxDied, match="host_lost") as caught:
                await client.call(lost[0], 0, command("a"))
            assert caught.value.is_infra
            assert (await client.info(lost[0])).reason is Reason.HOST_LOST
            await client.call(kept, 0, command("b"))
            assert {(await client.create(SPEC)).id[0] for _ in range(4)} == {"2"}
            await fleet.start_agent("h1")  # it was only cut off: what it still has is nobody's now
            await fleet.until(lambda: all(fleet.hosts["h1"].infos[i].state is State.DEAD for i in lost))
            with pytest.raises(SandboxDied):
                await client.call(lost[0], 0, command("a"))

    asyncio.run(scene())


def test_a_gateway_that_was_away_does_not_call_its_hosts_lost(tmp_path: Path) -> None:
    async def scene() -> None:
        async with small_fleet(tmp_path, lost_after_s=0.5) as fleet:
            client = fleet.client()
            info = await client.create(SPEC)
            await fleet.stop("gateway")
            await asyncio.sleep(1.0)
            await fleet.start_gateway()
            assert fleet.state.hosts.silent(0.5) == []
            assert (await client.call(info.id, 0, command("a"))).seq == 0

    asyncio.run(scene())


@pytest.mark.parametrize("shares", [True, False], ids=["shared trajectories", "none shared"])
def test_a_sandbox_is_rebuilt_where_its_log_can_be_read_if_that_was_asked_for(tmp_path: Path, shares: bool) -> None:
    async def scene() -> None:
        async with small_fleet(tmp_path, (), lost_after_s=0.6) as fleet:
            logs: dict[str, Any] = {}
            for name in TWO:
                await fleet.start_agent(
                    name, FakeHost(name[-1], shared=logs if shares else None), trajectories="t" if shares else ""
                )
            client = fleet.client(rebuild=True)
            infos = [await client.create(SPEC) for _ in range(4)]
            lost = next(info.id for info in infos if info.id.startswith("1"))
            first = await client.call(lost, 0, command("a"))
            await fleet.stop("h1")
            if not shares:
                with pytest.raises(SandboxDied, match="no other has its trajectories"):
                    await client.call(lost, 1, command("b"))
                return
            second = await client.call(lost, 1, command("b"))
            assert fleet.hosts["h2"].ran[lost] == ["b"]
            assert (await client.call(lost, 0, command("a"))).data == first.data
            assert (await client.call(lost, 1, command("b"))).data == second.data
            await fleet.start_agent("h1", trajectories="t")
            await fleet.until(lambda: fleet.hosts["h1"].infos[lost].state is State.DEAD)
            assert (await client.info(lost)).state is State.RUNNING

    asyncio.run(scene())


def test_a_host_closes_what_nobody_here_has_asked_for_but_not_at_once(tmp_path: Path) -> None:
    async def scene() -> None:
        async with small_fleet(tmp_path) as fleet:
            host = fleet.hosts["h1"]
            orphan = await host.create(SPEC)
            await asyncio.sleep(0.15)
            assert host.infos[orphan.id].state is State.RUNNING
            await fleet.until(lambda: host.infos[orphan.id].state is State.DEAD)

    asyncio.run(scene())


def test_a_sandbox_that_ended_by_itself_is_dead_here_too_with_its_reason(tmp_path: Path) -> None:
    async def scene() -> None:
        async with small_fleet(tmp_path) as fleet:
            client = fleet.client()
            info = await client.create(SPEC)
            host = fleet.hosts["h1"]
            await host.close(info.id)
            await fleet.until(lambda: fleet.state.sandboxes.get(info.id, None).state is State.DEAD)
            assert fleet.state.sandboxes.get(info.id, None).reason is Reason.CLOSED
            assert await client.sandboxes() == []

    asyncio.run(scene())


def test_a_host_that_drains_keeps_its_sandboxes_and_gets_no_more(tmp_path: Path) -> None:
    async def scene() -> None:
        async with small_fleet(tmp_path, TWO) as fleet:
            client, admin = fleet.client(), fleet.client(FLEET_TOKEN)
            await admin.connection.json("POST", "/hosts/h1/drain", {})
            assert {(await client.create(SPEC)).id[0] for _ in range(5)} == {"2"}
            hosts = await admin.connection.json("GET", "/hosts")
            assert {host["name"]: host["state"] for host in hosts} == {"h1": "draining", "h2": "alive"}
            await admin.connection.json("POST", "/hosts/h1/drain", {"is_draining": False})
            assert {(await client.create(SPEC)).id[0] for _ in range(8)} == {"1", "2"}

    asyncio.run(scene())


def test_a_snapshot_starts_on_the_host_that_has_it_and_for_its_project_alone(tmp_path: Path) -> None:
    async def scene() -> None:
        async with small_fleet(tmp_path, TWO) as fleet:
            client = fleet.client()
            info = await client.create(SPEC)
            ref = await client.snapshot(info.id, "s")
            assert {(await client.create(SPEC, snapshot=ref)).id[0] for _ in range(5)} == {info.id[0]}
            stranger = fleet.client(fleet.state.projects.add_token("q"))
            with pytest.raises(RequestError, match="unknown to project 'q'"):
                await stranger.create(SPEC, snapshot=ref)
            with pytest.raises(RequestError):
                await client.create(SPEC, snapshot=SnapshotRef(id="made up", kind="vm", seq=0))

    asyncio.run(scene())


def test_an_agent_that_is_away_for_long_is_said_to_be_unreachable_and_not_dead(tmp_path: Path) -> None:
    async def scene() -> None:
        async with small_fleet(tmp_path) as fleet:
            client = fleet.client(patience_s=0.3)
            info = await client.create(SPEC)
            await fleet.stop("h1")
            with pytest.raises(HostUnreachable, match="h1"):
                await client.call(info.id, 0, command("a"))
            await fleet.start_agent("h1")
            assert (await client.call(info.id, 0, command("a"))).seq == 0

    asyncio.run(scene())


def test_metrics_tell_what_lives_where(tmp_path: Path) -> None:
    async def scene() -> None:
        async with small_fleet(tmp_path, TWO, lost_after_s=0.6) as fleet:
            client, admin = fleet.client(), fleet.client(FLEET_TOKEN)
            for _ in range(3):
                await client.create(SPEC)
            await fleet.until(lambda: b'gateway_sandboxes{state="running"} 3.0' in fleet.state.metrics.render())
            text = (await admin.connection.send("GET", "/metrics", b"", "")).text
            assert 'benthic_sandbox_gateway_hosts{state="alive"} 2.0' in text
            agent = fleet.agents["h1"]
            await agent.status()
            assert b'benthic_sandbox_alive{kind="function",state="running"}' in agent.metrics.render()

    asyncio.run(scene())


def test_an_owner_may_have_what_crashed_made_again_and_nobody_what_was_closed(tmp_path: Path) -> None:
    async def scene() -> None:
        async with small_fleet(tmp_path) as fleet:
            client, host = fleet.client(), fleet.hosts["h1"]
            info = await client.create(SPEC)
            await client.call(info.id, 0, command("a"))
            host.infos[info.id] = replace(host.infos[info.id], state=State.DEAD, reason=Reason.CRASHED)
            assert (await client.info(info.id)).state is State.DEAD
            with pytest.raises(SandboxDied):
                await client.call(info.id, 1, command("b"))
            assert (await client.rebuild(info.id)).num_run == 1
            assert (await client.call(info.id, 1, command("b"))).seq == 1
            await client.close(info.id)
            with pytest.raises(SandboxDied, match="closed"):
                await client.rebuild(info.id)

    asyncio.run(scene())
