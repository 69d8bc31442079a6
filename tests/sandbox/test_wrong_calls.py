"""A call with wrong arguments is refused in words, and the sandbox takes the next call."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from benthic.errors import BenthicError
from benthic.sandbox import Sandbox
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
    "a path that is not absolute": (lambda box: box.read("work"), "no absolute path"),
    "a path of ten thousand letters": (lambda box: box.read("/work/" + "a/" * 5000), "/work/a/"),
    "a folder as a file": (lambda box: box.read("/work"), "Is a directory"),
    "what is not there": (lambda box: box.read("/work/none"), "No such file"),
    "an argument that is no JSON": (lambda box: box.call("def main(x): return x", object()), "must be JSON"),
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
