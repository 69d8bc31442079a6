"""Whether a call that was run again came to the same: exactly, or but for what no two runs share.

What a run is compared by: how it ended and what it printed, what a file, folder or archive holds. What it used, how
long it took and when a file was changed are its own. Output is compared byte for byte first; then with clock times,
dates, durations, addresses, process ids and names of temporary files replaced by what they are.
"""

import io
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from benthic.sandbox.host import Answer, Request

Sameness = Literal["exact", "alike", "different"]
"""`alike`: the same but for what the normalisers replace."""


class Normaliser(NamedTuple):
    """One thing in which two good runs may differ."""

    name: str
    pattern: re.Pattern[bytes]


NORMALISERS: tuple[Normaliser, ...] = tuple(
    Normaliser(name, re.compile(pattern))
    for name, pattern in (
        ("date", rb"\b\d{4}-\d{2}-\d{2}\b"),
        ("time", rb"\b\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?\b"),
        ("weekday", rb"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b[^\n]{0,40}\b(19|20)\d{2}\b"),
        ("month", rb"\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +\d{1,2}\b( +(19|20)\d{2}\b)?"),
        ("duration", rb"\b\d+(\.\d+)? ?(ns|us|ms|s|sec|secs|seconds?|min|minutes?)\b"),
        ("timing", rb"\b(real|user|sys)\s+\d+m?[\d.,]*s?"),
        ("unix time", rb"\b1[6-9]\d{8}(\.\d+)?\b"),
        ("address", rb"\b0x[0-9a-fA-F]{6,16}\b"),
        ("process", rb"\b[Pp][Ii][Dd][ :=]+\d+"),
        ("temporary file", rb"/tmp/(tmp|pip-|pytest-of-)?[A-Za-z0-9_.-]*[A-Za-z0-9_]{6,}"),
        ("uuid", rb"\b[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"),
    )
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How alike two answers are, and where they part."""

    sameness: Sameness
    detail: str = ""


def compare(
    request: Request, logged: Answer, again: Answer, normalisers: Sequence[Normaliser] = NORMALISERS
) -> Comparison:
    """A logged answer and the one of a second run of the same call."""
    if logged.error != again.error:
        return Comparison("different", f"error was {logged.error}, and is {again.error}")
    old, new = _facts(request, logged), _facts(request, again)
    for name in old.keys() | new.keys():
        if old.get(name) != new.get(name):
            return Comparison("different", f"{name} was {_cut(old.get(name))}, and is {_cut(new.get(name))}")
    worst: Sameness = "exact"
    for name, before, after in _contents(request, logged, again):
        if before == after:
            continue
        if normalised(before, normalisers) != normalised(after, normalisers):
            return Comparison("different", f"{name} differs {_first_difference(before, after)}")
        worst = "alike"
    return Comparison(worst)


def normalised(text: bytes, normalisers: Sequence[Normaliser] = NORMALISERS) -> bytes:
    """A text with everything that no two runs share replaced by its name."""
    for name, pattern in normalisers:
        text = pattern.sub(b"<" + name.encode() + b">", text)
    return text


def _facts(request: Request, answer: Answer) -> dict[str, Any]:
    value = answer.value
    match request.verb:
        case _ if answer.error is not None:
            return {name: item for name, item in value.items() if name in ("path", "what", "message")}
        case "exec":
            dropped = {name: bool(value.get(name)) for name in ("dropped_stdout_bytes", "dropped_stderr_bytes")}
            return {"returncode": value.get("returncode"), "reason": value.get("reason", "exited"), **dropped}
        case "call":
            return {name: value.get(name) for name in ("value", "reason")}
        case "list":
            return {"entries": [_untimed(entry) for entry in value["entries"]]}
        case "stat":
            return _untimed(value)
    return {}  # a spawn, a signal: that it was done is all


def _contents(request: Request, logged: Answer, again: Answer) -> list[tuple[str, bytes, bytes]]:
    match request.verb:
        case "exec" | "call":
            old_out, old_err = _streams(logged)
            new_out, new_err = _streams(again)
            return [("stdout", old_out, new_out), ("stderr", old_err, new_err)]
        case "download":
            return [("archive", _archive_facts(logged.data), _archive_facts(again.data))]
        case "read":
            return [("content", logged.data, again.data)]
    return []


def _streams(answer: Answer) -> tuple[bytes, bytes]:
    cut = answer.value.get("num_stdout_bytes", 0)
    return answer.data[:cut], answer.data[cut:]


def _archive_facts(data: bytes) -> bytes:
    """Names, sorts, modes, targets and contents, without times and owners."""
    lines = []
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isreg() else None
                content = file.read() if file else member.linkname.encode()
                lines.append(b"%s %s %o\n%s" % (member.name.encode(), member.type, member.mode, content))
    except tarfile.TarError:
        return data
    return b"\n".join(sorted(lines))


def _untimed(stat: dict[str, Any]) -> dict[str, Any]:
    # A folder's size is the file system's affair.
    ignored = ("modified_s", "size_bytes") if stat.get("type") == "folder" else ("modified_s",)
    return {name: value for name, value in stat.items() if name not in ignored}


def _first_difference(before: bytes, after: bytes) -> str:
    old_lines, new_lines = before.splitlines(), after.splitlines()
    pairs = zip(old_lines, new_lines, strict=False)
    line = next((index for index, (old, new) in enumerate(pairs) if old != new), min(len(old_lines), len(new_lines)))
    old, new = (_line(lines, line) for lines in (old_lines, new_lines))
    return f"from line {line + 1} on: it was {old}, and is {new}"


def _line(lines: list[bytes], index: int) -> str:
    return _cut(lines[index].decode("utf-8", "replace")) if index < len(lines) else "at its end"


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:80]}...{text[-30:]}"
