"""The life of a sandbox on every kind: replay, pause, snapshot, fork, take-over, rebuild, verification, end."""

import asyncio

import pytest

from benthic.sandbox import LocalHost, Sandbox, SandboxDied, State
from benthic.sandbox.trajectory import verify
from tests.sandbox.conformance.conftest import Stand


def test_a_program_that_is_run_again_gets_the_same_answers_and_nothing_runs_twice(stand: Stand) -> None:
    async def program(sandbox: Sandbox) -> list[object]:
        cwd = sandbox.spec.cwd
        await sandbox.write(f"{cwd}/n", b"1")
        first = await sandbox.exec("cat n; echo x >> runs; wc -l < runs")
        process = await sandbox.spawn("read x; echo $x >> runs; echo $x", keeps_input=True)
        await process.feed("y\n")
        exited = await process.wait()
        return [first.text, exited.text, await sandbox.read(f"{cwd}/runs"), (await sandbox.stat(f"{cwd}/n")).size_bytes]

    async def scene() -> None:
        async with stand.made() as sandbox:
            said = await program(sandbox)
            assert said[2] == b"x\ny\n"
            again = await Sandbox.resume_from(sandbox.id, host=stand.host)
            assert await program(again) == said
            assert await again.read(f"{sandbox.spec.cwd}/runs") == b"x\ny\n"
            report = await verify(stand.host, stand.local.trajectory(sandbox.id))
            assert report.first_difference is None, report.first_difference

    stand.play(scene)


def test_a_paused_sandbox_stands_still_and_goes_on(stand: Stand) -> None:
    async def scene() -> None:
        async with stand.made() as sandbox:
            await sandbox.spawn("while :; do echo >> ticks; sleep 0.05; done")
            await sandbox.exec("until [ -s ticks ]; do sleep 0.05; done")
            await sandbox.pause()
            assert (await sandbox.info()).state is State.PAUSED
            await asyncio.sleep(1)
            await sandbox.resume()
            before = int((await sandbox.exec("wc -l < ticks")).text)
            await asyncio.sleep(0.7)
            assert int((await sandbox.exec("wc -l < ticks")).text) > before

    stand.play(scene)


def test_forks_share_the_past_and_not_the_future(stand: Stand) -> None:
    async def scene() -> None:
        async with stand.made() as sandbox:
            await sandbox.exec("echo base > f")
            forks = await sandbox.fork(2)
            texts = [(await fork.exec(f"echo {n} >> f; cat f")).text for n, fork in enumerate(forks)]
            assert texts == ["base\n0\n", "base\n1\n"]
            assert (await sandbox.exec("cat f")).text == "base\n"
            for fork in forks:
                await fork.close()

    stand.play(scene)


def test_another_host_takes_over_where_the_first_one_stood(stand: Stand) -> None:
    async def scene() -> None:
        first = LocalHost(stand.root, stand.local.drivers)
        await first.open()
        sandbox = await Sandbox.create_from(stand.spec, host=first)
        await sandbox.exec("echo 1 >> f")
        running = asyncio.create_task(sandbox.exec("sleep 1; echo 2 >> f; echo done"))
        await asyncio.sleep(0.4)
        await first.leave()
        await asyncio.gather(running, return_exceptions=True)
        again = await Sandbox.resume_from(sandbox.id, host=stand.local)
        assert (await again.exec("echo 1 >> f")).is_replayed
        assert (await again.exec("sleep 1; echo 2 >> f; echo done")).text == "done\n"
        assert (await again.exec("cat f")).text == "1\n2\n"
        await again.close()

    stand.play(scene)


def test_a_branch_has_the_state_before_the_call_that_differs(stand: Stand) -> None:
    async def scene() -> None:
        async with stand.made() as sandbox:
            for n in range(3):
                await sandbox.exec(f"echo {n} >> f")
            info = await stand.host.branch(sandbox.id, 2)
            branch = await Sandbox.attach(info.id, host=stand.host)
            assert branch.next_seq == 2
            assert (await branch.exec("echo other >> f; cat f")).text == "0\n1\nother\n"
            await branch.close()

    stand.play(scene)


def test_the_end_is_the_end(stand: Stand) -> None:
    async def scene() -> None:
        sandbox = await Sandbox.create_from(stand.spec, host=stand.host)
        await sandbox.close()
        await sandbox.close()
        with pytest.raises(SandboxDied, match="closed"):
            await sandbox.exec("true")
        assert not stand.local.folders.home(sandbox.id).exists()

    stand.play(scene)
