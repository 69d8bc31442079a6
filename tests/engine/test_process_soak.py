"""Everything at once against a server and its engine's process: in the end nothing is left behind."""

from pathlib import Path

import pytest

import benthic
from benchmarks.engine.soak import Holdings, SoakConfig, soak
from benthic.engine.config import EngineConfig
from benthic.engine.messages import EngineSpec
from tests.engine.fakes import fake_spec

TINY = Path(benthic.__file__).parent / "assets" / "tiny"


def test_a_short_soak_leaves_nothing_behind() -> None:
    findings = soak(SoakConfig(spec=fake_spec(step_s=0.003), folder=TINY, seconds=2.5, kill_every_s=1.0))
    print(findings.line())
    assert findings.problems == []
    assert findings.outcomes["ok"] > 20 and findings.acts["kill"] >= 1 and findings.acts["check"] >= 1


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not list(TINY.glob("*.safetensors")), reason="the bundled model has no weights in this tree")
def test_ten_minutes_with_the_bundled_model_leave_nothing_behind() -> None:
    engine = EngineConfig(max_num_seqs=8, max_model_len=1024, stall_timeout_s=60.0)
    spec = EngineSpec(model="tiny", device="cpu", engine=engine)
    findings = soak(SoakConfig(spec=spec, folder=TINY, seconds=600.0))
    print(findings.line())
    assert findings.problems == []


def test_a_summary_names_what_is_left() -> None:
    config = SoakConfig(spec=fake_spec(), folder=TINY, seconds=0.0)
    findings = soak(config)
    assert isinstance(findings.after, Holdings)
    findings.problems.append("1 page is held")
    assert "PROBLEMS: 1 page is held" in findings.line()
