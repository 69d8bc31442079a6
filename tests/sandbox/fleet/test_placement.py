"""Which host gets a sandbox, and whether a host takes it."""

import asyncio
import random
from collections import Counter

import pytest

from benthic.errors import CapacityError
from benthic.sandbox.errors import NotSupported
from benthic.sandbox.fleet.admission import Admission
from benthic.sandbox.fleet.placement import Candidate, place
from benthic.sandbox.fleet.status import Capacity, HostStatus, Load
from benthic.sandbox.host import SandboxInfo
from benthic.sandbox.records import Limits, ProbeResult, SandboxSpec, State

ROOM = Capacity(cpus=10.0, memory_bytes=10 << 30, num_sandboxes=10)
SPEC = SandboxSpec(limits=Limits(cpus=1.0, memory_bytes=1 << 30))
NONE: frozenset[str] = frozenset()


def host(name: str, used: int = 0, *, is_open: bool = True, can_run: bool = True) -> Candidate:
    load = Load(cpus=float(used), memory_bytes=used << 30, num_sandboxes=used)
    return Candidate(name=name, is_open=is_open, can_run=can_run, capacity=ROOM, load=load)


def test_of_two_hosts_the_emptier_one_is_taken() -> None:
    rng = random.Random(1)
    assert {place([host("a", 5), host("b", 4)], SPEC, NONE, rng) for _ in range(50)} == {"b"}


def test_of_many_hosts_the_fullest_is_never_taken_and_the_others_share() -> None:
    rng = random.Random(1)
    hosts = [host(str(used), used) for used in range(6)]
    counts = Counter(place(hosts, SPEC, NONE, rng) for _ in range(600))
    assert counts["5"] == 0
    assert sorted(counts, key=counts.__getitem__, reverse=True) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    "closed", [host("b", 10), host("b", is_open=False), host("b", can_run=False)], ids=["full", "closed", "unable"]
)
def test_a_host_that_cannot_take_it_is_left_out(closed: Candidate) -> None:
    rng = random.Random(1)
    assert {place([host("a", 9), closed], SPEC, NONE, rng) for _ in range(20)} == {"a"}


def test_a_host_that_has_just_refused_is_not_asked_again() -> None:
    assert place([host("a"), host("b", 9)], SPEC, frozenset({"a"}), random.Random(1)) == "b"


def test_no_room_may_pass_and_no_driver_may_not() -> None:
    with pytest.raises(CapacityError, match="none of 1 hosts has room"):
        place([host("a", 10)], SPEC, NONE, random.Random(1))
    with pytest.raises(CapacityError):
        place([], SPEC, NONE, random.Random(1))
    with pytest.raises(NotSupported, match="no host of this fleet runs sandboxes of kind function"):
        place([host("a", can_run=False)], SPEC, NONE, random.Random(1))


@pytest.mark.parametrize(
    ("spec", "can"),
    [
        (SandboxSpec(kind="container"), True),
        (SandboxSpec(kind="container", driver="runc"), False),
        (SandboxSpec(kind="container", driver="crun"), True),
        (SandboxSpec(kind="vm"), False),
    ],
)
def test_a_host_runs_what_its_probes_have_run(spec: SandboxSpec, can: bool) -> None:
    probes = (
        ProbeResult(kind="container", driver="crun", is_working=True, detail=""),
        ProbeResult(kind="container", driver="runc", is_working=False, detail="missing"),
    )
    status = HostStatus(name="a", url="unix:/a", incarnation="1", capacity=ROOM, drivers=probes)
    assert status.can_run(spec) is can


def admission(*, free: int = 1 << 40, max_starting: int = 2, max_waiting: int = 100) -> Admission:
    return Admission(
        ROOM,
        max_starting=max_starting,
        max_waiting=max_waiting,
        min_free_memory_bytes=1 << 30,
        free_memory=lambda: free,
    )


def test_a_host_counts_what_starts_and_what_lives_and_refuses_what_does_not_fit() -> None:
    async def scene() -> None:
        gate = admission(max_starting=20)
        async with gate.start(SPEC, 4), gate.start(SPEC, 5):
            assert gate.load.num_starting == 9
            with pytest.raises(CapacityError, match="9 of 10 processors"):
                async with gate.start(SPEC, 2):
                    pass
        gate.observe(SandboxInfo(id=str(n), spec=SPEC, state=State.RUNNING) for n in range(10))
        with pytest.raises(CapacityError):
            async with gate.start(SPEC):
                pass
        gate.remove("3")
        async with gate.start(SPEC):
            pass
        assert gate.load.num_starting == 0

    asyncio.run(scene())


def test_a_host_without_free_memory_starts_nothing_whatever_was_promised() -> None:
    async def scene() -> None:
        with pytest.raises(CapacityError, match="100 MiB of memory are free"):
            async with admission(free=100 << 20).start(SPEC):
                pass

    asyncio.run(scene())


def test_a_storm_starts_a_few_at_a_time_and_beyond_a_queue_it_is_refused_at_once() -> None:
    async def scene() -> None:
        gate = admission(max_starting=2, max_waiting=3)
        inside, peak, refused = 0, 0, 0

        async def start() -> None:
            nonlocal inside, peak, refused
            try:
                async with gate.start(SPEC):
                    inside += 1
                    peak = max(peak, inside)
                    await asyncio.sleep(0.01)
                    inside -= 1
            except CapacityError:
                refused += 1

        await asyncio.gather(*(start() for _ in range(8)))
        assert (peak, refused) == (2, 3)

    asyncio.run(scene())
