"""The whole way of a measurement with the bundled model: a server is started, loaded and ended; an engine is timed."""

import json
from pathlib import Path

import pytest

import benthic
from benthic.cli.command import run

WEIGHTS = list((Path(benthic.__file__).parent / "assets" / "tiny").glob("*.safetensors"))
pytestmark = pytest.mark.skipif(not WEIGHTS, reason="the bundled model has no weights in this tree")


def test_a_server_under_load_reports_every_request_and_finds_earlier_turns_in_its_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.jsonl"
    words = ["bench", "serve", "tiny", "--dataset", "multi-turn", "--sessions", "3", "--turns", "3", "--groups", "1"]
    sizes = ["--prefix-len", "200", "--input-len", "40", "--output-len", "8", "--spread", "0.2", "--rate", "50"]
    assert run([*words, *sizes, "--slo-ttft-ms", "60000", "--out", str(out), "--engine.drafter", "ngram"]) == 0
    shown = capsys.readouterr().out
    assert "9 in " in shown
    assert "goodput" in shown
    *lines, last = [json.loads(line) for line in out.read_text().splitlines()]
    summary = last["summary"]
    assert len(lines) == 9
    assert summary["num_failed"] == 0
    assert all(line["output_len"] >= 6 and line["ttft_s"] <= line["e2e_s"] for line in lines)
    later = [line for line in lines if line["turn"]]
    assert all(line["cached_len"] >= 128 for line in later), "earlier turns were not found"
    assert summary["goodput"] == pytest.approx(summary["request_rate"])


def test_an_engine_is_timed_by_batch_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "offline.jsonl"
    words = ["bench", "offline", "tiny", "--batch", "1,2", "--prompt-len", "20", "--output-len", "6", "--repeats", "1"]
    assert run([*words, "--out", str(out)]) == 0
    hardware, header, *lines = capsys.readouterr().out.splitlines()
    assert hardware.startswith("# ")
    assert header.split()[0] == "batch"
    assert [line.split()[0] for line in lines] == ["1", "2"]
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert [result["batch"] for result in results] == [1, 2]
    assert all(result["decode_rate"] > 0 for result in results)
