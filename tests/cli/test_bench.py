"""`benthic bench`: options become configurations, and a mistake is told before anything is loaded."""

import json
from pathlib import Path

import pytest

from benthic.cli.command import run

MISTAKES = {
    "no such workload": (["bench", "serve", "--dataset", "poems"], "dataset is 'poems'"),
    "no such workload of the cache": (["bench", "cache", "--workload", "poems"], "dataset is 'poems'"),
    "no such policy": (
        ["bench", "cache", "--policies", "hope", "--sessions", "1", "--turns", "1"],
        "retention ('hope')",
    ),
    "batches that are no numbers": (["bench", "offline", "--batch", "1,many"], "--batch is '1,many'"),
    "no batch": (["bench", "offline", "--batch", "0"], "the batches are (0,)"),
    "one token to decode": (["bench", "offline", "--output-len", "1"], "output_len is 1"),
    "figure of no format": (["bench", "offline", "--plot", "x.txt"], "'x.txt'; its name must end in"),
    "no server": (["bench", "serve", "--url", "http://127.0.0.1:9"], "no server answers at 127.0.0.1:9"),
    "no URL": (["bench", "serve", "--url", "localhost"], "the server's URL is 'localhost'"),
    "leaves for a running server": (
        ["bench", "serve", "--url", "http://127.0.0.1:9", "--engine.num_threads", "2"],
        "--engine.num_threads configures a server that is started here",
    ),
    "rate of nothing": (["bench", "serve", "--rate", "0"], "rate is 0.0"),
    "bound of no time": (["bench", "serve", "--slo-ttft-ms", "-3"], "ttft_ms is -3"),
    "unknown engine leaf": (["bench", "offline", "--engine.nonsense", "3"], "engine.nonsense"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, reason = MISTAKES[name]
    assert run(words) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert reason in captured.err
    assert captured.out == ""


def test_the_caches_reuse_is_one_line_a_policy_and_one_json_line_a_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "hits.jsonl"
    words = ["bench", "cache", "--sessions", "4", "--turns", "3", "--prefix-len", "600", "--input-len", "100"]
    assert run([*words, "--output-len", "40", "--policies", "boundaries,none", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-2:]] == ["boundaries", "none"]
    hits = [json.loads(line) for line in out.read_text().splitlines()]
    assert len([hit for hit in hits if hit["retention"] == "none"]) * 2 == len(hits) >= 24
    assert all(hit["usable_len"] <= hit["compressed_len"] < hit["prompt_len"] for hit in hits)
