"""The verbs on a checkpoint of random weights: each does its work in a process of its own or in this one."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

import benthic
from benthic.cli.command import run
from benthic.models.checkpoint import dummy_model, load_model, save_checkpoint
from benthic.models.checkpoint.write import companion_files
from benthic.models.config import ModelConfig

TINY = Path(benthic.__file__).parent / "assets" / "tiny"
COMPANIONS = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "benthic.json")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small random model and the bundled tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "small"
    config = replace(
        ModelConfig.from_json(TINY),
        num_hidden_layers=3,
        compress_ratios=(0, 4, 128, 0),
        hidden_size=128,
        num_attention_heads=2,
        num_hash_layers=1,
        index_n_heads=2,
        max_position_embeddings=1024,
    )
    save_checkpoint(dummy_model(config, seed=3), folder)
    for name in COMPANIONS:
        if (TINY / name).is_file():
            shutil.copyfile(TINY / name, folder / name)
    return folder


def test_generate_answers_every_prompt_of_a_file(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("What is 1 + 2?\n\nWhat is 3 + 4?\n", encoding="utf-8")
    words = ["generate", "--file", str(prompts), "-m", str(checkpoint), "--max-tokens", "5", "--no-thinking", "--json"]
    assert run(words) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(answers) == 2
    assert all(answer["usage"]["completion_tokens"] <= 5 for answer in answers)
    assert run([*words[:-1]]) == 0
    shown = capsys.readouterr().out
    assert shown == "".join(answer["choices"][0]["message"]["content"] + "\n" for answer in answers)


def test_generate_raw_continues_the_text_itself(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "Once", "-m", str(checkpoint), "--raw", "--max-tokens", "4", "--seed", "1", "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    with benthic.LLM(checkpoint) as llm:
        [output] = llm.generate(["Once"], benthic.SamplingParams(max_tokens=4, seed=1))
    assert line == {"prompt": "Once", "text": output.outputs[0].text, "finish_reason": "length"}


def test_convert_rewrites_a_checkpoint_that_inspect_then_describes(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["convert", str(checkpoint), str(tmp_path / "out"), "--weights", "bf16"]) == 0
    capsys.readouterr()
    assert run(["inspect", str(tmp_path / "out"), "--tensors"]) == 0
    text = capsys.readouterr().out
    assert "embed.weight" in text
    assert "F8_E4M3" not in text


def test_chat_keeps_the_conversation_and_obeys_commands(checkpoint: Path) -> None:
    lines = "hello\ncaf\udce9\n/think\n/nonsense\nagain\n/new\n/quit\n"
    done = subprocess.run(
        [sys.executable, "-m", "benthic", "chat", str(checkpoint), "--max-tokens", "4"],
        input=lines,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        env={**environment(), "PYTHONUTF8": "1"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "error: this line is not UTF-8 text" in done.stdout
    assert "/nonsense is unknown" in done.stdout
    assert "A new conversation." in done.stdout


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(benthic.__file__).parent.parent), "PYTHONUNBUFFERED": "1"}


@contextmanager
def serving(folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benthic", "serve", str(folder), "--port", "0", "--name", "small"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def server(checkpoint: Path) -> Iterator[subprocess.Popen[str]]:
    with serving(checkpoint) as process:
        yield process


def test_serve_offers_a_completion_where_there_is_no_chat(checkpoint: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "plain"))
    (folder / "benthic.json").write_text('{"prompt_dialect": "template"}')
    (folder / "tokenizer_config.json").unlink(missing_ok=True)
    with serving(folder) as process:
        assert process.stdout is not None
        curl = next(line for line in process.stdout if "curl" in line)
        url, body = curl.split()[1], json.loads(curl.split(" -d '")[1].strip().removesuffix("'"))
        assert url.endswith("/v1/completions")
        answer = httpx.post(url, json=body, timeout=60)
    assert answer.status_code == 200
    assert answer.json()["model"] == "small"


def test_serve_says_when_it_is_ready_answers_its_own_curl_line_and_ends_cleanly(
    server: subprocess.Popen[str],
) -> None:
    assert server.stdout is not None
    curl = next(line for line in server.stdout if "curl" in line)
    body = json.loads(curl.split(" -d '")[1].strip().removesuffix("'"))
    url = curl.split()[1]
    answer = httpx.post(url, json={**body, "max_tokens": 3}, timeout=60)
    assert answer.status_code == 200
    assert answer.json()["model"] == "small"
    port = url.split(":")[2].split("/")[0]
    busy = subprocess.run(
        [sys.executable, "-m", "benthic", "serve", "--port", port], capture_output=True, text=True, env=environment()
    )
    assert busy.returncode == 2
    assert f"port {port}" in busy.stderr
    assert busy.stderr.count("\n") == 1
    server.send_signal(signal.SIGTERM)
    begin = time.monotonic()
    assert server.wait(30) == 0
    assert time.monotonic() - begin < 10


def test_few_questions_do_not_fail_an_evaluation_unless_asked(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", str(checkpoint), "--per-cell", "1", "--task", "addition, three", "--engine.max_model_len", "512"]
    assert run(words) == 0
    assert "too few questions to fail on (1 of each task and mode, from 32 on)" in capsys.readouterr().err
    assert run([*words, "--gate"]) == 1
    assert "goals missed: addition, three digits" in capsys.readouterr().err


@pytest.mark.nightly
def test_the_first_start_says_that_it_compiles_and_later_ones_are_silent(checkpoint: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benthic", "generate", "x", "--raw", "--max-tokens", "1", "-m", str(checkpoint)]
    told = [
        subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**environment(), "NUMBA_CACHE_DIR": str(tmp_path)},
            timeout=280,
        ).stderr.count("compiling CPU kernels, once")
        for _ in range(2)
    ]
    assert told == [1, 0]


@pytest.mark.parametrize("words", [["generate", "x"], ["generate", "x", "--json"], ["generate", "x", "--raw"]])
def test_weights_that_are_no_numbers_are_one_line(
    words: list[str], checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load_model(checkpoint, device="cpu")
    model.head.weight.data.fill_(float("nan"))
    save_checkpoint(model, tmp_path, weights="fp32", companions=companion_files(checkpoint))
    assert run([*words, "-m", str(tmp_path), "--max-tokens", "2"]) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "not finite numbers" in line
