"""Errors on every kind, typed and with their reasons, in process and at a fleet; and the rest of the public calls."""

import asyncio
from dataclasses import replace

import pytest

from benthic.errors import RequestError, SandboxError
from benthic.sandbox import Reason, Sandbox, SandboxDied, State
from benthic.sandbox.errors import TrajectoryDiverged, UnknownSandbox
from benthic.sandbox.host import Request
from tests.sandbox.conformance.conftest import Stand


def test_a_sandbox_that_outlives_its_time_dies_of_that(stand: Stand) -> None:
    async def scene() -> None:
        sandbox = await Sandbox.create_from(replace(stand.spec, ttl_s=1.0), host=stand.host)
        await asyncio.sleep(1.0)
        with pytest.raises(SandboxDied) as caught:
            await sandbox.exec("sleep 30")
        assert (caught.value.reason, caught.value.sandbox_id) == (Reason.EXPIRED, sandbox.id)
        info = await sandbox.info()
        assert (info.state, info.reason) == (State.DEAD, Reason.EXPIRED)
        with pytest.raises(SandboxDied):
            await Sandbox.attach(sandbox.id, host=stand.host)

    stand.play(scene)


def test_what_is_wrong_with_a_call_is_told_and_its_place_is_free(stand: Stand) -> None:
    async def scene() -> None:
        async with stand.made() as sandbox:
            with pytest.raises((RequestError, SandboxError)):
                await sandbox.exec(["true"], cwd="/work\0")
            with pytest.raises(SandboxError, match="no spawned command"):
                await stand.host.wait(sandbox.id, 7)
            with pytest.raises(UnknownSandbox):
                await stand.host.call("0123456789ab", 0, Request(verb="exec", arguments={"shell": "true"}))
            seq = sandbox.next_seq
            assert (await sandbox.exec("echo a")).seq == seq
            with pytest.raises(TrajectoryDiverged, match="shell of exec was 'echo a'"):
                await stand.host.call(sandbox.id, seq, Request(verb="exec", arguments={"shell": "echo b"}))
            with pytest.raises(RequestError):
                await stand.host.call(sandbox.id, -1, Request(verb="exec", arguments={"shell": "true"}))

    stand.play(scene)


def test_a_paused_sandbox_refuses_new_calls_and_answers_old_ones(stand: Stand) -> None:
    async def scene() -> None:
        async with stand.made() as sandbox:
            first = await sandbox.exec("echo once")
            await sandbox.pause()
            with pytest.raises(SandboxError, match="paused"):
                await sandbox.exec("true")
            again = Sandbox(stand.host, await sandbox.info())
            replayed = await again.exec("echo once")
            assert (replayed.text, replayed.is_replayed) == (first.text, True)
            await sandbox.resume()
            assert (await sandbox.exec("echo on")).text == "on\n"

    stand.play(scene)


def test_a_snapshot_starts_others_and_a_resumed_program_gets_the_same_one(stand: Stand) -> None:
    async def scene() -> None:
        async with stand.made() as sandbox:
            await sandbox.exec("echo kept > f")
            ref = await sandbox.snapshot("mine")
            await sandbox.exec("echo later > f")
            child = await Sandbox.create_from(stand.spec, host=stand.host, snapshot=ref)
            assert (await child.exec("cat f")).text == "kept\n"
            await child.close()
            again = await Sandbox.resume_from(sandbox.id, host=stand.host)
            await again.exec("echo kept > f")
            assert await again.snapshot("mine") == ref
            assert (await again.exec("echo later > f")).is_replayed

    stand.play(scene)


def test_a_port_inside_is_reached_by_a_socket_outside(stand: Stand) -> None:
    async def scene() -> None:
        async with stand.made() as sandbox:
            script = "printf '#!/bin/sh\\nread x; echo got $x\\n' > answer; chmod +x answer"
            await sandbox.exec(script)
            await sandbox.spawn(f"busybox nc -l -p 8123 -e {sandbox.spec.cwd}/answer")
            path = await sandbox.expose(8123)
            async with asyncio.timeout(20):
                while True:
                    reader, writer = await asyncio.open_unix_connection(path)
                    writer.write(b"this\n")
                    said = await reader.read()
                    writer.close()
                    if said:
                        break
                    await asyncio.sleep(0.1)
            assert said == b"got this\n"

    stand.play(scene)
