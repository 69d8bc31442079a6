"""What a trajectory says: the records of one log, and the calls that they make up.

head    once, first: whose log this is, what the sandbox was made from, and where a branch left its parent
begin   a call that can change the sandbox is about to run
end     what it came to; only then is it answered
done    a call that cannot change it (read, list, stat): begin and end in one
exit    how a spawned command ended, when somebody first asked
note    what else happened: snapshots, pauses, rebuilds, deaths
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from benthic.errors import RequestError
from benthic.sandbox.host import Answer, Request
from benthic.sandbox.records import Checkpoint
from benthic.sandbox.trajectory.frames import MAX_TEXT_BYTES

FORMAT = 1
RecordType = Literal["head", "begin", "end", "done", "exit", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first record of a log."""

    sandbox_id: str
    spec: dict[str, Any] = field(default_factory=dict)
    """JSON form of the `SandboxSpec`."""
    created_s: float = 0.0
    parent: Checkpoint | None = None
    """The trajectory that a fork or branch began in, and the last call that both share."""
    snapshot: dict[str, Any] | None = None
    """JSON form of the `SnapshotRef` that the sandbox started from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One call: what was asked, and what it came to."""

    seq: int
    request: Request
    request_hash: str
    began_s: float
    """Unix time."""
    answer: Answer | None = None
    """None: it runs, or a crash hides how it ended."""
    ended_s: float | None = None
    exit: Answer | None = None
    """Of a spawned command: its result."""


def request_hash(request: Request) -> str:
    """Tells whether two calls ask for the same, 32 hex digits."""
    digest = hashlib.blake2b(canonical([request.verb, request.arguments]), digest_size=16)
    digest.update(b"\0")
    digest.update(request.data)
    return digest.hexdigest()


def canonical(value: Any) -> bytes:
    """The one JSON text of a value: keys sorted, no spaces, ASCII.

    Raises:
        RequestError: it has none, or is too large for a record.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"arguments of a logged call must be JSON, and are not: {error}") from error
    if len(text) > MAX_TEXT_BYTES:
        raise RequestError(f"arguments of a logged call ({len(text)} bytes) must fit {MAX_TEXT_BYTES}; pass data")
    return text


def difference(logged: Request, asked: Request) -> str:
    """In words, how a call differs from the logged one of its place."""
    if logged.verb != asked.verb:
        return f"{_shown(logged)} was logged, and {_shown(asked)} came"
    for name in sorted(logged.arguments.keys() | asked.arguments.keys()):
        old, new = logged.arguments.get(name), asked.arguments.get(name)
        if old != new:
            return f"{name} of {logged.verb} was {_cut(old)}, and is {_cut(new)}"
    return f"the data of {logged.verb} was {len(logged.data)} other bytes, and is {len(asked.data)} bytes"


def _shown(request: Request) -> str:
    facts = " ".join(f"{name}={_cut(value)}" for name, value in sorted(request.arguments.items()))
    return f"{request.verb} {facts}".rstrip()


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:40]}...{text[-30:]}"
