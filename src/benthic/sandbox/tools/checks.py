"""One check of a task, run in the sandbox of scoring and judged on the host."""

import json
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from benthic.errors import SandboxError
from benthic.sandbox.errors import CommandTimeout, PathError
from benthic.sandbox.records import Command, Result
from benthic.sandbox.sandbox import Sandbox
from benthic.sandbox.tools.task import AnswerCheck, CallCheck, Check, FileCheck, OutputCheck, ReportCheck, Verdict

CALLER = """
import importlib.util, json, os, sys
request = json.loads(sys.stdin.readline())
answers = os.dup(1)
os.dup2(2, 1)
spec = importlib.util.spec_from_file_location("solution", request["file"])
module = importlib.util.module_from_spec(spec)
sys.modules["solution"] = module
spec.loader.exec_module(module)
value = getattr(module, request["function"])(*request["arguments"])
os.write(answers, json.dumps({"value": value}).encode())
"""
"""Runs inside: one call in one process, whose answer goes where what the work prints does not."""


CLOSED = """
import ctypes, runpy, sys
assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a hidden Python program as a process that its children cannot look into (PR_SET_DUMPABLE): they run as its user,
and would find the secret in its memory and its output among its descriptors."""


async def run_check(check: Check, sandbox: Sandbox, submission: str | None) -> Verdict:
    """Judges one thing. A program that fails, hangs or lies fails its check; it never raises for that."""
    match check:
        case OutputCheck():
            return await _guarded(check.name, lambda: _output(check, sandbox))
        case CallCheck():
            return await _guarded(check.name, lambda: _calls(check, sandbox))
        case ReportCheck():
            return await _guarded(check.name, lambda: _report(check, sandbox))
        case FileCheck():
            return await _guarded(check.name, lambda: _file(check, sandbox))
        case AnswerCheck():
            problem = "" if submission is not None and submission.strip() == check.answer.strip() else "another answer"
            return Verdict(name=check.name, is_passed=not problem, detail=problem)


async def _guarded(name: str, run: Callable[[], Awaitable[str]]) -> Verdict:
    try:
        problem = await run()
    except CommandTimeout:
        problem = "it took too long"
    except PathError as error:
        problem = str(error)
    return Verdict(name=name, is_passed=not problem, detail=problem)


async def _output(check: OutputCheck, sandbox: Sandbox) -> str:
    result = await sandbox.exec(check.command)
    if result.returncode != 0:
        return _failed(result)
    return "" if _is_same(result.stdout, check.stdout, check.is_exact) else "it printed something else"


async def _file(check: FileCheck, sandbox: Sandbox) -> str:
    data = await sandbox.read(check.path, limit=len(check.content) + (64 << 10))
    return "" if _is_same(data, check.content, check.is_exact) else f"{check.path} has another content"


async def _calls(check: CallCheck, sandbox: Sandbox) -> str:
    for arguments, expected in check.cases:
        request = {"file": check.file, "function": check.function, "arguments": arguments}
        result = await sandbox.exec(
            Command(
                argv=("python3", "-I", "-c", CALLER),
                stdin=json.dumps(request).encode() + b"\n",
                timeout_s=check.timeout_s,
            )
        )
        if result.returncode != 0:
            return f"{check.function}{arguments!r}: {_failed(result)}"
        try:
            answer: Any = json.loads(result.stdout)
        except ValueError:
            return f"{check.function}{arguments!r} gave no answer"
        if not _equals(answer, {"value": expected}):
            return f"{check.function}{arguments!r} gave something else"
    return ""


def _equals(found: Any, expected: Any) -> bool:
    """Equal as JSON: 1 is not true, and a tuple is a list."""
    return json.dumps(found, sort_keys=True) == json.dumps(expected, sort_keys=True)


async def _report(check: ReportCheck, sandbox: Sandbox) -> str:
    secret = secrets.token_hex(16)
    command = replace(_closed(check.command), stdin=f"{secret}\n".encode() + check.command.stdin, user="root")
    if CLOSED in (command.argv or ()) and (await sandbox.exec(("python3", "-c", "import ctypes"))).returncode != 0:
        error = SandboxError(f"check {check.name!r} needs a python3 with ctypes, which this image has not")
        error.is_infra = True
        raise error
    result = await sandbox.exec(command)
    if result.returncode != 0:
        return _failed(result)
    lines = set(result.stdout.decode("utf-8", "replace").splitlines())
    missing = [name for name in check.passed if f"{secret} passed {name}" not in lines]
    return f"{len(missing)} of {len(check.passed)} did not pass: {', '.join(missing[:5])}" if missing else ""


def _closed(command: Command) -> Command:
    """The same for `python3 FILE ...`; other programs must close themselves."""
    if command.argv is None or len(command.argv) < 2 or command.argv[0] != "python3" or command.argv[1].startswith("-"):
        return command
    return replace(command, argv=("python3", "-c", CLOSED, *command.argv[1:]))


def _failed(result: Result) -> str:
    last = result.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    return f"ended with {result.returncode} ({result.reason})" + (f": {last[0][:200]}" if last else "")


def _is_same(found: bytes, expected: bytes, is_exact: bool) -> bool:
    if is_exact:
        return found == expected
    return [line.rstrip() for line in found.strip().splitlines()] == [
        line.rstrip() for line in expected.strip().splitlines()
    ]
