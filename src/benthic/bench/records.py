"""What is known of one measured request, and how it is written: one JSON object a line."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request of a run. Times in seconds; `due_s` since the start of the run, all others since `due_s`.

    `due_s` is when the request should have been sent, not when a place was free for it: a client that waits for a
    place would otherwise hide just the delays that a full server causes.
    """

    session_id: str
    turn: int
    due_s: float
    sent_s: float = 0.0
    ttft_s: float | None = None
    """Until the first piece of the answer."""
    e2e_s: float | None = None
    """Until the last one."""
    itl_s: tuple[float, ...] = ()
    """Between consecutive pieces; with speculation a piece may hold several tokens."""
    prompt_len: int
    output_len: int = 0
    cached_len: int = 0
    """Prompt tokens that the server found in its cache."""
    accepted_len: int | None = None
    """Output tokens that were drafted and accepted; None where the server does not say."""
    finish_reason: str | None = None
    error: str | None = None

    @property
    def is_ok(self) -> bool:
        """Whether the request was answered."""
        return self.error is None and self.e2e_s is not None

    @property
    def tpot_s(self) -> float | None:
        """Seconds a token after the first piece; None for answers of one token."""
        if self.ttft_s is None or self.e2e_s is None or self.output_len < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.output_len - 1)


def write_lines(path: Path, records: Iterable[RequestRecord], summary: Mapping[str, Any]) -> None:
    """One line a request, then one with the key "summary"."""
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(asdict(record)) + "\n")
        file.write(json.dumps({"summary": summary}) + "\n")
