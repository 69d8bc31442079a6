"""What a host of this machine does beside running calls: keys, bounds, clocks, pauses, forks, deaths, take-overs."""

import asyncio
import time
from pathlib import Path

import pytest

from benthic.errors import SandboxError
from benthic.sandbox import LocalHost, Reason, Sandbox, SandboxDied, StartFailed, State, TrajectoryDiverged
from benthic.sandbox.errors import OutcomeUnknown, TrajectoryHeld, UnknownSandbox
from benthic.sandbox.folders import Folders
from benthic.sandbox.host import Request
from benthic.sandbox.records import Network
from tests.sandbox.bare_driver import BareDriver
from tests.sandbox.bare_host import host_of, made, needs_unshare, scene, spec

pytestmark = needs_unshare


def bare(host: LocalHost) -> BareDriver:
    driver = host.drivers[0]
    assert isinstance(driver, BareDriver)
    return driver


async def until_dead(sandbox: Sandbox, limit_s: float = 10.0) -> Reason | None:
    deadline = time.monotonic() + limit_s
    while (info := await sandbox.info()).state is not State.DEAD:
        assert time.monotonic() < deadline, "it should have died"
        await asyncio.sleep(0.05)
    return info.reason


def test_a_key_gives_the_same_sandbox_however_often_and_at_once_it_is_used(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        made = await asyncio.gather(*(host.create(spec(tmp_path), key="episode 7") for _ in range(5)))
        again = await host.create(spec(tmp_path), key="episode 7")
        assert len({info.id for info in [*made, again]}) == 1
        assert bare(host).num_started == 1
        assert (await host.create(spec(tmp_path), key="episode 8")).id != again.id

    scene(tmp_path, play)


def test_a_storm_of_creates_is_bounded_and_none_fails(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        bare(host).start_pause_s = 0.01
        infos = await asyncio.gather(*(host.create(spec(tmp_path)) for _ in range(12)))
        assert len({info.id for info in infos}) == 12
        assert bare(host).most_starting <= 3

    scene(tmp_path, play, max_starting=3)


def test_a_start_is_tried_twice_and_then_says_which_stage_failed_and_leaves_nothing(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        bare(host).fail_starts = 1
        await host.create(spec(tmp_path), key="k")
        bare(host).fail_starts = 2
        with pytest.raises(StartFailed, match="a test says so.*queue") as caught:
            await host.create(spec(tmp_path), key="l")
        assert caught.value.stage == "runtime" and caught.value.is_infra
        assert len(list(host.folders.homes.iterdir())) == 1
        await host.create(spec(tmp_path), key="l")  # the key is free again

    scene(tmp_path, play)


def test_a_start_over_its_budget_fails_with_the_time_of_each_stage(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        bare(host).start_pause_s = 5
        with pytest.raises(StartFailed, match="was not up after 0 s.*driver"):
            await host.create(spec(tmp_path))

    scene(tmp_path, play, start_budget_s=0.3)


def test_an_unknown_id_and_one_that_is_no_id_are_refused(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        with pytest.raises(UnknownSandbox):
            await host.info("0123456789ab")
        with pytest.raises(SandboxError, match="12 hex digits"):
            await host.info("../../../etc")

    scene(tmp_path, play)


def test_calls_to_a_dead_sandbox_are_answered_as_far_as_its_log_goes(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        sandbox = await made(host)
        await sandbox.exec("echo one")
        await sandbox.close()
        again = await Sandbox.resume_from(sandbox.id, host=host)
        assert (await again.exec("echo one")).is_replayed
        with pytest.raises(SandboxDied, match="closed"):
            await again.exec("echo two")
        assert (await host.info(sandbox.id)).reason is Reason.CLOSED

    scene(tmp_path, play)


def test_a_machine_that_dies_in_the_middle_of_a_command_is_told_with_its_reason(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        sandbox = await made(host)
        (host.folders.home(sandbox.id) / "reason").write_text("out_of_memory")
        running = asyncio.create_task(sandbox.exec("sleep 60"))
        await asyncio.sleep(0.3)
        (await bare(host).adopt(sandbox.spec, host.folders.home(sandbox.id))).process.kill()  # type: ignore[union-attr]
        with pytest.raises(SandboxDied) as caught:
            await running
        assert caught.value.reason is Reason.OUT_OF_MEMORY and not caught.value.is_infra
        assert await until_dead(sandbox) is Reason.OUT_OF_MEMORY
        assert not host.folders.home(sandbox.id).exists()
        with pytest.raises(SandboxDied, match="out_of_memory"):  # the agent's own doing is part of its trajectory
            await (await Sandbox.resume_from(sandbox.id, host=host)).exec("sleep 60")

    scene(tmp_path, play)


def test_a_death_that_nobody_is_there_to_see_is_found(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        sandbox = await made(host)
        (await bare(host).adopt(sandbox.spec, host.folders.home(sandbox.id))).process.kill()  # type: ignore[union-attr]
        assert await until_dead(sandbox) is Reason.CRASHED

    scene(tmp_path, play)


def test_life_ends_with_its_time_and_paused_time_does_not_count(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        mortal, paused = await made(host, ttl_s=1.0), await made(host, ttl_s=1.0)
        await paused.pause()
        assert await until_dead(mortal) is Reason.EXPIRED
        await asyncio.sleep(0.7)
        assert (await paused.info()).state is State.PAUSED
        with pytest.raises(SandboxError, match="is paused; resume it"):
            await paused.exec("true")
        await paused.resume()
        assert (await paused.exec("echo here")).text == "here\n"

    scene(tmp_path, play)


def test_a_lease_that_lapses_pauses_and_the_next_call_wakes(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        sandbox = await made(host)
        await host.renew(sandbox.id, 0.2)
        deadline = time.monotonic() + 10
        while (await sandbox.info()).state is not State.PAUSED:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        await host.renew(sandbox.id, 60)
        assert (await sandbox.info()).state is State.RUNNING
        assert (await sandbox.exec("echo on")).text == "on\n"

    scene(tmp_path, play)


def test_forks_start_from_the_present_state_and_are_the_same_for_the_same_place(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        sandbox = await made(host)
        await sandbox.exec("echo base > f")
        forks = await sandbox.fork(3)
        texts = [(await fork.exec(f"echo {n} >> f; cat f")).text for n, fork in enumerate(forks)]
        assert texts == [f"base\n{n}\n" for n in range(3)]
        assert (await sandbox.exec("cat f")).text == "base\n"
        again = await Sandbox.resume_from(sandbox.id, host=host)
        await again.exec("echo base > f")
        assert [fork.id for fork in await again.fork(3)] == [fork.id for fork in forks]
        assert bare(host).num_started == 4

    scene(tmp_path, play)


def test_another_program_at_the_same_place_may_branch(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        sandbox = await made(host)
        for n in range(3):
            await sandbox.exec(f"echo {n} >> f")
        again = await Sandbox.create(resume=sandbox.id, on_divergence="branch", host=host)
        assert (await again.exec("echo 0 >> f")).is_replayed
        assert (await again.exec("echo other >> f")).is_replayed is False
        assert again.id != sandbox.id
        assert (await again.exec("cat f")).text == "0\nother\n"
        assert (await sandbox.exec("cat f")).text == "0\n1\n2\n"
        third = await Sandbox.resume_from(again.id, host=host)
        assert (await third.exec("echo 0 >> f")).is_replayed, "a branch has the calls before it in common"

    scene(tmp_path, play)


def test_a_lost_sandbox_is_made_again_from_its_nearest_snapshot_and_its_log(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        sandbox = await made(host, snapshot_every=3)
        for n in range(7):
            await sandbox.exec(f"echo {n} >> f; cat f")
            await asyncio.sleep(0.05)  # snapshots are taken between calls
        (await bare(host).adopt(sandbox.spec, host.folders.home(sandbox.id))).process.kill()  # type: ignore[union-attr]
        assert await until_dead(sandbox) is Reason.CRASHED
        done = await host.rebuild(sandbox.id)
        assert (done.snapshot_seq, done.num_run, done.diverged_at) == (5, 1, None)
        assert (await sandbox.exec("cat f")).text == "".join(f"{n}\n" for n in range(7))
        assert (await host.rebuild(sandbox.id)).num_run == 0, "a living one is left alone"

    scene(tmp_path, play)


def test_a_rebuild_says_where_the_calls_came_to_something_else(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        sandbox = await made(host)
        await sandbox.exec("echo same")
        await sandbox.exec("head -c 8 /dev/urandom | od -x")
        (await bare(host).adopt(sandbox.spec, host.folders.home(sandbox.id))).process.kill()  # type: ignore[union-attr]
        await until_dead(sandbox)
        with pytest.raises(TrajectoryDiverged, match="call 1: stdout differs"):
            await Sandbox.create(resume=sandbox.id, rebuilds=True, host=host)

    scene(tmp_path, play)


@pytest.mark.parametrize("has_network", [False, True])
def test_a_call_that_may_have_been_heard_outside_is_not_run_again_unasked(tmp_path: Path, has_network: bool) -> None:
    async def play(host: LocalHost) -> None:
        network = Network.allow("example.org:443") if has_network else Network()
        sandbox = await made(host, network=network)
        running = asyncio.create_task(sandbox.exec("sleep 0.5; echo sent"))
        await asyncio.sleep(0.2)
        (await bare(host).adopt(sandbox.spec, host.folders.home(sandbox.id))).process.kill()  # type: ignore[union-attr]
        with pytest.raises(SandboxDied):
            await running
        await until_dead(sandbox)
        await host.rebuild(sandbox.id)
        if has_network:
            with pytest.raises(OutcomeUnknown, match="may have been heard outside"):
                await sandbox.exec("sleep 0.5; echo sent")
        else:
            assert (await sandbox.exec("sleep 0.5; echo sent")).text == "sent\n"

    scene(tmp_path, play)


def test_a_closed_sandbox_is_not_made_again(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        sandbox = await made(host)
        await sandbox.close()
        with pytest.raises(SandboxDied, match="closed"):
            await host.rebuild(sandbox.id)

    scene(tmp_path, play)


def test_a_sandbox_of_another_living_host_is_left_alone_and_taken_over_when_that_lets_go(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        first = LocalHost(tmp_path, [BareDriver(tmp_path)])
        await first.open()
        sandbox = await made(first)
        await sandbox.exec("echo kept > f")
        running = asyncio.create_task(sandbox.exec("sleep 1; echo slow >> f; echo done"))
        await asyncio.sleep(0.3)
        with pytest.raises(TrajectoryHeld):
            await host.call(sandbox.id, 0, Request(verb="exec", arguments={"shell": "echo kept > f"}))
        assert [info.id for info in await host.sandboxes()] == [sandbox.id]
        assert await host.reconcile() == []
        await first.leave()
        with pytest.raises(TrajectoryHeld, match="let go"):
            await running
        again = await Sandbox.resume_from(sandbox.id, host=host)
        assert (await again.exec("echo kept > f")).is_replayed
        joined = await again.exec("sleep 1; echo slow >> f; echo done")
        assert joined.text == "done\n" and joined.duration_s < 5
        assert (await again.exec("cat f")).text == "kept\nslow\n"

    scene(tmp_path, play)


def test_a_paused_sandbox_is_taken_over_paused(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        async with host_of(tmp_path) as first:
            sandbox = await made(first)
            await sandbox.exec("echo x > f")
            await sandbox.pause()
        assert (await host.info(sandbox.id)).state is State.PAUSED
        await host.resume(sandbox.id)
        assert (await (await Sandbox.attach(sandbox.id, host=host)).exec("cat f")).text == "x\n"

    scene(tmp_path, play)


def test_a_checkpoint_is_where_a_rollout_goes_on_and_a_false_one_is_refused(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        sandbox = await made(host)
        await sandbox.exec("echo 1 > f")
        place = await sandbox.checkpoint()
        await sandbox.exec("echo 2 >> f")
        again = await Sandbox.create(resume=place, host=host)
        assert again.next_seq == 1
        assert (await again.exec("echo 2 >> f")).is_replayed, "the trainer had lost this call's answer"
        assert not (await again.exec("cat f")).is_replayed
        with pytest.raises(TrajectoryDiverged, match="is not the one that was seen"):
            await Sandbox.create(resume=place._replace(chain="00" * 16), host=host)
        with pytest.raises(TrajectoryDiverged, match="ends with call"):
            await Sandbox.create(resume=place._replace(last_seq=50), host=host)

    scene(tmp_path, play)


def test_a_handle_that_stops_waiting_ends_its_command_and_the_next_call_works(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        sandbox = await made(host)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sandbox.exec("sleep 60; echo late >> f"), 0.3)
        assert (await sandbox.exec("echo next")).text == "next\n"
        await sandbox.detach()  # waits for what was given up
        assert (await sandbox.exec("cat f || echo none")).text == "none\n"

    scene(tmp_path, play)


def test_a_reader_that_leaves_a_stream_does_not_hold_its_command(tmp_path: Path) -> None:
    async def play(host: LocalHost) -> None:
        sandbox = await made(host)
        request = Request(verb="exec", arguments={"shell": "yes | head -c 3000000; echo end >> f"})
        async for _ in host.stream(sandbox.id, 0, request):
            break  # as a client whose connection was cut: the command itself goes on
        answer = await asyncio.wait_for(host.call(sandbox.id, 0, request), 20)
        assert answer.value["returncode"] == 0
        sandbox.next_seq = 1
        assert (await sandbox.exec("cat f")).text == "end\n"

    scene(tmp_path, play)


def test_a_key_that_is_a_file_as_once_it_was_is_read_and_swept(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.create()
    key = folders._key("k")
    key.write_text("0" * 12)
    assert folders.key_owner("k") == "0" * 12
    folders.sweep()
    assert folders.key_owner("k") is None
