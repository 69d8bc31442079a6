"""Commands and their ends as init's headers have them. What comes from inside is checked before it is believed."""

import json
import re
from dataclasses import dataclass
from typing import Any

from benthic.sandbox.errors import GuestLost
from benthic.sandbox.guest.frames import Frame
from benthic.sandbox.guest.records import JobInfo, Terminal
from benthic.sandbox.records import Command, Reason, Usage

JOB_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
REASONS = {
    "exited": Reason.EXITED,
    "signalled": Reason.SIGNALLED,
    "killed": Reason.KILLED,
    "timeout": Reason.TIMEOUT,
    "quiet": Reason.QUIET,
}
NUMBER_MAX = 1 << 62
FEED_BYTES = 256 << 10
"""Input in one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """How a job ended, before its output is there."""

    returncode: int | None
    reason: Reason
    stdout_bytes: int
    """Kept."""
    stderr_bytes: int
    dropped_stdout_bytes: int
    dropped_stderr_bytes: int
    usage: Usage
    duration_s: float
    failure: str
    """Of a file call: what could not be done."""
    errno: int
    body: bytes
    """Stdout and stderr, if they fit."""


def command_fields(
    command: Command,
    *,
    terminal: Terminal | None = None,
    keeps_input: bool = False,
    holds_output: bool = False,
) -> dict[str, Any]:
    """The header that starts a command; input that fits travels with it."""
    argv = list(command.argv) if command.argv is not None else ["/bin/sh", "-c", command.shell]
    fields: dict[str, Any] = {"argv": argv, "is_root": is_root(command.user)}
    if command.env:
        fields["env"] = [f"{name}={value}" for name, value in command.env]
    if command.cwd is not None:
        fields["cwd"] = command.cwd
    if command.timeout_s is not None:
        fields["timeout_ms"] = milliseconds(command.timeout_s)
    if command.quiet_timeout_s is not None:
        fields["quiet_ms"] = milliseconds(command.quiet_timeout_s)
    if command.max_output_bytes is not None:
        fields["output_bytes"] = command.max_output_bytes
    if terminal is not None:
        fields |= {"rows": terminal.rows, "columns": terminal.columns}
    fields |= {"input_ends": not keeps_input and len(command.stdin) <= FEED_BYTES, "holds_output": holds_output}
    return fields


def checked_id(job: str) -> str:
    """A job id as it is, or ValueError."""
    if not JOB_ID.fullmatch(job):
        raise ValueError(f"a job id must be 1 to 64 letters, digits, '-', '_' or '.', and is {job!r}")
    return job


def is_root(user: str | None) -> bool:
    """Whether a command's user is root."""
    if user not in (None, "root"):
        raise ValueError(f"a command runs as 'root' or as None, the sandbox's user, and not as {user!r}")
    return user == "root"


def milliseconds(seconds: float) -> int:
    """At least one: zero would mean no limit."""
    return max(1, round(seconds * 1000))


def end_of(frame: Frame) -> JobEnd:
    """The answer to `wait`; raises GuestLost for anything that no honest init would say."""
    header = frame.header
    reason = header.get("reason")
    if reason == "stuck":
        raise GuestLost("init could not end a command within its time; only the sandbox as a whole can be ended")
    if not isinstance(reason, str) or reason not in REASONS:
        raise GuestLost(f"init gave a reason that does not exist: {str(reason)[:60]!r}")
    kept = [number_of(header, name) for name in ("stdout", "stderr")]
    totals = [number_of(header, f"{name}_total") for name in ("stdout", "stderr")]
    if any(part > total for part, total in zip(kept, totals, strict=True)):
        raise GuestLost(f"init kept more output than there was: {kept} of {totals} bytes")
    return JobEnd(
        returncode=number_of(header, "returncode", low=-128) if "returncode" in header else None,
        reason=REASONS[reason],
        stdout_bytes=kept[0],
        stderr_bytes=kept[1],
        dropped_stdout_bytes=totals[0] - kept[0],
        dropped_stderr_bytes=totals[1] - kept[1],
        usage=Usage(
            cpu_s=number_of(header, "cpu_us") / 1e6,
            peak_memory_bytes=number_of(header, "peak_bytes"),
            written_bytes=number_of(header, "written_bytes"),
        ),
        duration_s=number_of(header, "duration_ms") / 1e3,
        failure=str(header.get("failure", ""))[:256],
        errno=number_of(header, "errno") if "errno" in header else 0,
        body=frame.body,
    )


def job_infos_of(frame: Frame) -> list[JobInfo]:
    """The answer to `jobs`: a JSON object a line."""
    try:
        lines = [json.loads(line) for line in frame.body.decode("utf-8", "surrogateescape").splitlines()]
        return [_job_info_of(line) for line in lines]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise GuestLost(f"init's table of jobs makes no sense: {error!r}") from None


def _job_info_of(line: dict[str, Any]) -> JobInfo:
    return JobInfo(
        job=checked_id(line["job"]),
        state="ended" if line["has_ended"] == 1 else "running",
        has_background=line["has_background"] == 1,
        stdout_bytes=number_of(line, "stdout"),
        stderr_bytes=number_of(line, "stderr"),
        fed_bytes=number_of(line, "fed"),
        returncode=number_of(line, "returncode", low=-128) if "returncode" in line else None,
        reason=REASONS.get(line["reason"]) if "reason" in line else None,
    )


def number_of(header: dict[str, Any], name: str, low: int = 0) -> int:
    """A whole number of a header; raises GuestLost."""
    number = header.get(name)
    if not isinstance(number, int) or not low <= number < NUMBER_MAX:
        raise GuestLost(f"init said {name}={str(number)[:40]}; a whole number from {low} on was due")
    return number
