"""Calls of functions in a jail's warm Python."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from benthic.sandbox import Limits, Reason, SandboxSpec
from benthic.sandbox.drivers.function import RESULT_BYTES, FunctionDriver
from benthic.sandbox.drivers.function_machine import FunctionMachine
from benthic.sandbox.images import Store
from benthic.sandbox.records import MIB, CallResult, FunctionCall
from tests.sandbox.drivers.jails import needs_jail

pytestmark = needs_jail
SPEC = SandboxSpec(kind="function", limits=Limits(memory_bytes=128 * MIB, num_processes=32, output_bytes=1000))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FunctionMachine]:
    root = tmp_path_factory.mktemp("state")
    driver = FunctionDriver(root, Store(root / "store"))
    home = root / "homes" / uuid4().hex[:12]
    home.mkdir(parents=True)
    machine = asyncio.run(driver.start(SPEC, home))
    yield machine
    asyncio.run(machine.destroy())
    assert asyncio.run(driver.reconcile([])) == []


def call(machine: FunctionMachine, source: str, *args: object, timeout_s: float = 20.0) -> CallResult:
    return asyncio.run(machine.call(FunctionCall(source=source, name="f", args=args, timeout_s=timeout_s)))


def test_a_function_returns_its_value_and_what_it_printed(machine: FunctionMachine) -> None:
    result = call(
        machine,
        "import sys\ndef f(x):\n    print('hello')\n    print('oh', file=sys.stderr)\n    return {'n': [x, None]}",
        7,
    )
    assert (result.value, result.error) == ({"n": [7, None]}, None)
    assert (result.stdout, result.stderr) == (b"hello\n", b"oh\n")
    assert result.reason is Reason.EXITED
    assert result.duration_s > 0
    assert result.usage.peak_memory_bytes > MIB


def test_nothing_of_a_call_is_seen_by_the_next(machine: FunctionMachine) -> None:
    source = """
import json, os
def f():
    seen = [os.listdir("/work"), os.listdir("/tmp"), getattr(json, "mark", None), os.environ.get("MARK")]
    json.mark = os.environ["MARK"] = "x"
    for folder in ("/work", "/tmp", "/dev/shm"):
        open(f"{folder}/mark", "w").write("x")
    if os.fork() == 0:
        os.setsid()
        __import__("time").sleep(60)
    return seen
"""
    assert call(machine, source).value == [[], [], None, None]
    assert call(machine, source).value == [[], [], None, None]
    assert machine.group is not None
    # A zygote with nsenter, one waiting pair, init and bubblewrap: no sleeper.
    assert len(machine.group.pids()) <= 7


def test_an_error_comes_with_its_traceback_and_without_our_own_lines(machine: FunctionMachine) -> None:
    result = call(machine, "def g(): raise KeyError('why')\ndef f(): g()")
    assert result.reason is Reason.EXITED
    assert result.error is not None
    assert result.error.startswith('Traceback (most recent call last):\n  File "<function>", line 2, in f')
    assert result.error.endswith("KeyError: 'why'\n")


@pytest.mark.parametrize(
    ("source", "reason", "error"),
    [
        ("def f():\n    while True: pass", Reason.TIMEOUT, "ran out of time"),
        ("import os\ndef f():\n    os.close(1001)\n    while True: pass", Reason.SIGNALLED, "SIGKILL"),
        ("import ctypes\ndef f(): ctypes.string_at(0)", Reason.SIGNALLED, "SIGSEGV"),
        ("import os\ndef f(): os._exit(3)", Reason.EXITED, "ended with 3"),
        ("def f(): return {1, 2}", Reason.EXITED, "not JSON serializable"),
        ("def f(): return float('nan')", Reason.EXITED, "not JSON compliant"),
        ("def f(): return 'x' * 2_000_000", Reason.EXITED, f"longer than {RESULT_BYTES} bytes"),
        ("import os\ndef f():\n    os.write(1001, b'{')\n    return 1", Reason.EXITED, "without returning"),
        ("def f(): raise SystemExit", Reason.EXITED, "SystemExit"),
        ("def f(:", Reason.EXITED, "SyntaxError"),
        ("def g(): pass", Reason.EXITED, "AttributeError"),
        ("def f(): f()", Reason.EXITED, "RecursionError"),
    ],
    ids=lambda value: None if isinstance(value, Reason) else value[:40],
)
def test_a_call_that_does_not_return_says_why(
    machine: FunctionMachine, source: str, reason: Reason, error: str
) -> None:
    result = call(machine, source, timeout_s=20.0 if reason is not Reason.TIMEOUT else 0.3)
    assert result.reason is reason, result.error
    assert result.value is None
    assert error in (result.error or "")
    assert call(machine, "def f(): return 1").value == 1, "the next call is unaffected"


def test_a_call_out_of_memory_says_so_and_the_next_one_works(machine: FunctionMachine) -> None:
    result = call(machine, "def f():\n    x = []\n    while True: x.append(bytearray(b'x' * (1 << 20)))")
    assert result.reason is Reason.OUT_OF_MEMORY
    assert call(machine, "def f(): return 1").value == 1


def test_output_is_bounded_to_its_first_and_last_part(machine: FunctionMachine) -> None:
    result = call(machine, "def f():\n    print('a' * 3000 + 'b' * 3000)")
    assert result.stdout == b"a" * 500 + b"b" * 499 + b"\n"


def test_a_call_that_goes_on_printing_is_ended_at_its_time(machine: FunctionMachine) -> None:
    result = call(machine, "def f():\n    while True: print('y')", timeout_s=0.5)
    assert result.reason is Reason.TIMEOUT
    assert len(result.stdout) <= 1000


def test_a_call_has_no_rights_and_the_filter_of_system_calls(machine: FunctionMachine) -> None:
    source = """
import ctypes, os
def f():
    status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines())
    fds = sorted(map(int, os.listdir("/proc/self/fd")))
    libc = ctypes.CDLL(None, use_errno=True)
    unshared = libc.unshare(0x10000000), ctypes.get_errno()
    extra = dict(os.environ).keys() - {"PATH", "LC_CTYPE", "PWD", "OLDPWD", "SHLVL", "_"}
    rights = [status[name] for name in ("CapEff", "CapPrm", "NoNewPrivs", "Seccomp")]
    return [os.getresuid(), os.getgroups(), os.getpid(), sorted(extra), rights, unshared, fds]
"""
    uids, groups, pid, extra, rights, unshared, fds = call(machine, source).value
    assert (uids, groups, pid, extra) == ([1000] * 3, [], 1, [])
    assert rights == ["0" * 16, "0" * 16, "1", "2"]
    assert unshared == [-1, 1]
    assert set(fds) <= {0, 1, 2, 3, 1001}


def test_calls_run_beside_each_other(machine: FunctionMachine) -> None:
    async def both() -> list[CallResult]:
        calls = [FunctionCall(source=f"import time\ndef f(): time.sleep(0.5); return {n}", name="f") for n in range(4)]
        return await asyncio.gather(*map(machine.call, calls))

    began = asyncio.run(_timed(both()))
    assert [result.value for result in began[0]] == [0, 1, 2, 3]
    assert began[1] < 1.9, "one after the other would take 2 s"


async def _timed(calls: Awaitable[list[CallResult]]) -> tuple[list[CallResult], float]:
    began = asyncio.get_running_loop().time()
    results = await calls
    return results, asyncio.get_running_loop().time() - began


def test_a_caller_that_goes_away_ends_its_call(machine: FunctionMachine) -> None:
    async def leave() -> None:
        call = machine.call(FunctionCall(source="import time\ndef f(): time.sleep(60)", name="f", timeout_s=None))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call, 0.3)

    asyncio.run(leave())
    assert machine.group is not None
    for _ in range(100):
        if len(machine.group.pids()) <= 7:
            break
        asyncio.run(asyncio.sleep(0.02))
    assert len(machine.group.pids()) <= 7


def test_a_zygote_that_was_killed_is_replaced(machine: FunctionMachine) -> None:
    assert call(machine, "def f(): return 1").value == 1
    assert machine.group is not None
    for pid in machine.group.pids():
        with contextlib.suppress(OSError):  # a monitor ends by itself meanwhile
            if b"python3" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                os.kill(pid, 9)
    assert call(machine, "def f(): return 2").value == 2
