"""Everything at once against a server and its engine's process: in the end nothing is left behind."""

from pathlib import Path

import benthic
from benchmarks.engine.soak import Holdings, SoakConfig, soak
from tests.engine.fakes import fake_spec

TINY = Path(benthic.__file__).parent / "assets" / "tiny"


def test_a_short_soak_leaves_nothing_behind() -> None:
    findings = soak(SoakConfig(spec=fake_spec(step_s=0.003), folder=TINY, seconds=5.0, kill_every_s=2.0))
    print(findings.line())
    assert findings.problems == []
    assert findings.outcomes["ok"] > 50 and findings.acts["kill"] >= 1 and findings.acts["check"] >= 3


def test_a_summary_names_what_is_left() -> None:
    config = SoakConfig(spec=fake_spec(), folder=TINY, seconds=0.0)
    findings = soak(config)
    assert isinstance(findings.after, Holdings)
    findings.problems.append("1 page is held")
    assert "PROBLEMS: 1 page is held" in findings.line()
