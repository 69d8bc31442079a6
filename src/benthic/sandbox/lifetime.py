"""How long a sandbox may live: pure bookkeeping over times that are passed in (Unix seconds).

Its time to live and its idle time count while it runs and stand still while it is paused. A lease is a promise of its
holder to come back; when it lapses the sandbox is paused, so that a trainer which was preempted finds it as it was.
"""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["lives", "lapsed", "expired"]


@dataclass(slots=True, kw_only=True)
class Lifetime:
    """The clocks of one sandbox. Law: `lived` never falls, and stands still while `running_since_s` is None."""

    ttl_s: float | None = None
    idle_ttl_s: float | None = None
    lived_s: float = 0.0
    """Running time up to the last change."""
    running_since_s: float | None = None
    """None while paused."""
    last_call_lived_s: float = 0.0
    lease_until_s: float | None = None

    def lived(self, now_s: float) -> float:
        """Running time so far."""
        running_s = 0.0 if self.running_since_s is None else max(0.0, now_s - self.running_since_s)
        return self.lived_s + running_s

    def started(self, now_s: float) -> None:
        """It runs, for the first time or again."""
        if self.running_since_s is None:
            self.running_since_s = now_s

    def paused(self, now_s: float) -> None:
        """Its clocks stop."""
        self.lived_s, self.running_since_s = self.lived(now_s), None

    def called(self, now_s: float) -> None:
        """A call began or ended."""
        self.last_call_lived_s = self.lived(now_s)

    def renewed(self, now_s: float, lease_s: float) -> None:
        """Its holder will be back within so many seconds."""
        self.lease_until_s = now_s + lease_s

    def verdict(self, now_s: float, *, is_busy: bool = False) -> Verdict:
        """What its host must do with it: nothing, pause it, or end it.

        Args:
            is_busy: a call runs; it is not idle then, and its lease is looked at when the call has ended.
        """
        lived_s = self.lived(now_s)
        if self.ttl_s is not None and lived_s >= self.ttl_s:
            return "expired"
        if is_busy:
            return "lives"
        if self.idle_ttl_s is not None and lived_s - self.last_call_lived_s >= self.idle_ttl_s:
            return "expired"
        has_lapsed = self.lease_until_s is not None and now_s >= self.lease_until_s
        return "lapsed" if has_lapsed and self.running_since_s is not None else "lives"
