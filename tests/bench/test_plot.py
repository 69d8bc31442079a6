"""Figures are drawn from the records themselves, and refused before a long measurement where they cannot be."""

import sys
from pathlib import Path

import pytest

from benthic.bench.offline import Throughput
from benthic.bench.plot import check_plotting, output_rates, plot_load, plot_replays, plot_throughput
from benthic.bench.records import RequestRecord
from benthic.bench.replay import PromptHit, Replay
from benthic.errors import ConfigError


def record(due_s: float, ttft_s: float, e2e_s: float, output_len: int) -> RequestRecord:
    return RequestRecord(
        session_id="s", turn=0, due_s=due_s, ttft_s=ttft_s, e2e_s=e2e_s, prompt_len=9, output_len=output_len
    )


RECORDS = [record(0.0, 0.1, 1.0, 40), record(0.5, 0.2, 1.5, 60), record(0.6, 0.3, 0.3, 1)]
RESULT = Throughput(
    batch=1, prompt_len=8, output_len=8, total_s=1.0, prefill_s=0.1, decode_rate=50.0, output_rate=40.0, spread=0.0
)
HIT = PromptHit(session_id="s", turn=0, prompt_len=100, compressed_len=64, usable_len=32, start_len=32, cut="no window")


def test_no_token_is_lost_between_the_bins_of_the_rate() -> None:
    ends, rates = output_rates(RECORDS, num_bins=10)
    width = ends[0]
    assert sum(rate * width for rate in rates) == pytest.approx(101)
    assert ends[-1] == pytest.approx(2.0)


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_every_kind_of_figure_is_written(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    check_plotting(tmp_path / f"x{suffix}")
    plot_load(tmp_path / f"load{suffix}", RECORDS, "run.jsonl")
    plot_throughput(tmp_path / f"throughput{suffix}", [RESULT, RESULT], "run.jsonl")
    plot_replays(tmp_path / f"cache{suffix}", [Replay("boundaries", 10, 4, [HIT])], "run.jsonl")
    assert all((tmp_path / f"{name}{suffix}").stat().st_size > 2000 for name in ("load", "throughput", "cache"))


def test_without_matplotlib_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"run\.svg cannot be drawn: .* install it by pip install 'benthic\[plot\]'"):
        check_plotting(Path("run.svg"))


def test_a_suffix_that_names_no_format_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'run\.txt'; its name must end in \.svg"):
        check_plotting(Path("run.txt"))
