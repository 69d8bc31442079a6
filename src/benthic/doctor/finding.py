"""One thing that was looked at: how it stands, what was found, and what to do about it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "limit", "broken"]
"""It works; it works and limits what can be done; something that Benthic needs does not work."""
_ORDER: tuple[Verdict, ...] = ("ok", "limit", "broken")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found. `remedy` says what would mend it, empty where nothing needs mending or can be."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        assert self.verdict == "ok" or self.remedy, f"{self.name} is {self.verdict} and nobody is told what to do"


def worst(findings: Iterable[Finding]) -> Verdict:
    """The gravest verdict; "ok" of nothing."""
    return max((finding.verdict for finding in findings), key=_ORDER.index, default="ok")
