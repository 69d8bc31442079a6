"""A call with wrong arguments is refused in words, and the sandbox takes the next call."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from benthic.errors import BenthicError, SandboxError
from benthic.sandbox import NotSupported, Result, Sandbox, SnapshotRef
from benthic.sandbox.host import Request, Verb
from benthic.sandbox.live import LiveSandbox
from benthic.sandbox.probe import local_host
from tests.sandbox.kinds import require_kind

Call = Callable[[Sandbox], Coroutine[Any, Any, Any]]
CALLS: dict[str, tuple[Call, str]] = {
    "a command of two MiB": (lambda box: box.exec("echo " + "x" * (2 << 20)), "too large"),
    "a NUL in an argument": (lambda box: box.exec(("echo", "a\0b")), "NUL"),
    "half a surrogate pair": (lambda box: box.exec("echo \ud800"), "half a surrogate pair"),
    "no program": (lambda box: box.exec(()), "argv is empty"),
    "a number": (lambda box: box.exec(5), "a command is text for a shell"),  # type: ignore[arg-type]
    "another user": (lambda box: box.exec("id", user="daemon"), "user must be 'root' or None"),
    "less than no time": (lambda box: box.exec("true", timeout_s=-1), "timeout_s must be"),
    "a time that is no number": (lambda box: box.exec("true", timeout_s=float("nan")), "timeout_s must be"),
    "a path with a NUL": (lambda box: box.write("/work/a\0", b""), "NUL"),
    "a path of ten thousand letters": (lambda box: box.read("/work/" + "a/" * 5000), "/work/a/"),
    "a folder as a file": (lambda box: box.read("/work"), "Is a directory"),
    "what is not there": (lambda box: box.read("/work/none"), "No such file"),
    "an argument that is no JSON": (lambda box: box.call("def main(x): return x", object()), "must be JSON"),
    "a snapshot's name with a slash": (lambda box: box.snapshot("../a"), "a snapshot's name"),
    "a port that is none": (lambda box: box.expose(70000), "70000"),
}


def test_each_wrong_call_is_refused_and_the_next_one_runs(tmp_path: Path) -> None:
    require_kind("function")

    async def scene() -> None:
        async with local_host(tmp_path) as host, Sandbox.create(kind="function", host=host) as box:
            for name, (call, says) in CALLS.items():
                with pytest.raises((BenthicError, ValueError), match=says):
                    await call(box)
                assert (await box.exec("echo fine")).text == "fine\n", name
            again = await Sandbox.create(resume=box.id, host=host)
            with pytest.raises(BenthicError, match="too large"):
                await again.exec("echo " + "x" * (2 << 20))
            assert (await again.exec("echo fine")).is_replayed

    asyncio.run(scene())


def test_a_snapshot_that_cannot_be_is_an_answer_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_kind("function")

    async def refuse(_: LiveSandbox, name: str, *, is_asked: bool = True) -> SnapshotRef:
        raise NotSupported("this kind keeps no snapshots")

    async def program(box: Sandbox) -> Result:
        for call in (box.snapshot, box.fork):
            with pytest.raises(NotSupported, match="keeps no snapshots"):
                await call()
        return await box.exec("echo fine")

    async def scene() -> None:
        monkeypatch.setattr(LiveSandbox, "snapshot", refuse)
        async with local_host(tmp_path) as host, Sandbox.create(kind="function", host=host) as box:
            assert (await program(box)).text == "fine\n"
            assert (await program(await Sandbox.create(resume=box.id, host=host))).is_replayed

    asyncio.run(scene())


def test_a_path_that_is_not_absolute_lies_below_the_folder_of_commands(tmp_path: Path) -> None:
    require_kind("function")

    async def scene() -> None:
        async with local_host(str(tmp_path)) as host, Sandbox.create(kind="function", host=host, cwd="/work/a") as box:
            await box.write("b/c", "text")
            assert (await box.exec("cat b/c; pwd")).text == "text/work/a\n"
            assert (await box.exec("pwd; cat c", cwd="b")).text == "/work/a/b\ntext"
            assert await box.read("/work/a/b/c") == await box.read("b/c") == b"text"
            assert [entry.path for entry in await box.list("b")] == ["/work/a/b/c"]
            assert box.id in repr(box)

    asyncio.run(scene())


def test_a_call_in_an_image_without_python_says_which_has_one(tmp_path: Path) -> None:
    require_kind("container")

    async def scene() -> None:
        async with local_host(tmp_path) as host, Sandbox.create(kind="container", host=host) as box:
            with pytest.raises(SandboxError, match="no python3 .* python:host"):
                await box.call("def main(): return 1")

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("fork", {"count": 10**12}),
        ("fork", {"count": "x"}),
        ("fork", {}),
        ("snapshot", {"name": "../../x"}),
        ("snapshot", {"name": 5}),
        ("read", {"path": 5}),
        ("read", {}),
        ("exec", {"shell": "true", "timeout_s": 1e308}),
        ("exec", {"shell": "true", "nosuch": 1}),
        ("spawn", {"shell": "true", "terminal": ["a", "b"]}),
        ("call", {"source": "def main(): return 1", "name": "main", "timeout_s": -1}),
    ],
)
def test_arguments_that_no_handle_would_send_are_answers_too(
    tmp_path: Path, verb: Verb, arguments: dict[str, Any]
) -> None:
    require_kind("function")

    async def scene() -> None:
        async with local_host(tmp_path) as host, Sandbox.create(kind="function", host=host) as box:
            answer = await host.call(box.id, 0, Request(verb=verb, arguments=arguments))
            assert answer.error in ("RequestError", "CallRefused", "PathError"), answer
            after = await host.call(box.id, 1, Request(verb="exec", arguments={"shell": "echo fine"}))
            assert after.data == b"fine\n"

    asyncio.run(scene())
