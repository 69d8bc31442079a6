"""What one HTTP request asked of the engine and got, in numbers alone: no text, no tokens."""

import time
from collections.abc import Sequence

from benthic.engine.request import Event, FinalOutput, Request


class Tally:
    """Counts while a request's sequences run. Prompts that several choices share count once."""

    def __init__(self, requests: Sequence[Request], arrived_at: float) -> None:
        self._arrived_at = arrived_at
        self._own_prompts = {request.request_id for request in requests if request.fork_of is None}
        self.reply_id = requests[0].request_id.rpartition("-")[0] if requests else None
        self.num_sequences = len(requests)
        self.prompt_tokens = sum(len(request.prompt_ids) for request in requests if request.fork_of is None)
        self.cached_tokens = 0
        self.generated_tokens = 0
        self.queued_s: float | None = None
        self.first_token_s: float | None = None
        self.ends: list[str] = []
        """How the sequences ended so far: a finish reason of the engine, or the kind of an error."""

    def take(self, event: Event) -> None:
        """One event of a sequence."""
        if not isinstance(event, FinalOutput):
            self.generated_tokens += 1
            if self.first_token_s is None:
                self.first_token_s = time.monotonic() - self._arrived_at
            return
        self.ends.append(event.error_kind or event.finish_reason)
        if event.request_id in self._own_prompts:
            self.cached_tokens += event.cached_len
        if event.report is not None:
            self.queued_s = max(self.queued_s or 0.0, event.report.queued_s)

    def figures(self) -> dict[str, object]:
        """As a log line carries them."""
        return {
            "reply_id": self.reply_id,
            "sequences": self.num_sequences,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "generated_tokens": self.generated_tokens,
            "queued_s": _rounded(self.queued_s),
            "first_token_s": _rounded(self.first_token_s),
            "ended": ",".join(sorted(set(self.ends))) or None,
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
