"""The command line answers at once, explains mistakes in one line, and never shows a traceback for them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import benthic
from benthic.cli.command import run
from benthic.cli.compiling import NOTICE, compilation_notice
from benthic.cli.leaves import separate_leaves
from benthic.cli.serve_options import read_serve_options
from benthic.errors import ConfigError

SOURCE = Path(benthic.__file__).parent.parent
VERBS = ("serve", "chat", "generate", "train", "eval", "convert", "inspect", "plan", "bench")

HELP_PROBE = """
import sys, time
begin = time.process_time()
from benthic.cli.command import run
code = run(sys.argv[1:])
spent = time.process_time() - begin
heavy = [name for name in ("torch", "numpy", "fastapi", "transformers", "numba") if name in sys.modules]
print(f"PROBE {code} {spent:.3f} {heavy}", file=sys.stderr)
"""


def execute(words: list[str]) -> subprocess.CompletedProcess[str]:
    """A finished process, which must have ended well."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("arguments", [["--help"], *([verb, "--help"] for verb in VERBS)], ids=" ".join)
def test_help_answers_within_half_a_second_and_without_torch(arguments: list[str]) -> None:
    done = execute([sys.executable, "-c", HELP_PROBE, *arguments])
    _, code, seconds, heavy = done.stderr.split(" ", 3)
    assert (code, heavy.strip()) == ("0", "[]")
    # Processor time: a busy machine is not the command's fault.
    assert float(seconds) < 0.5
    assert "Usage: benthic" in done.stdout


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {verb} " in listed for verb in VERBS)


def test_python_dash_m_is_the_command() -> None:
    done = execute([sys.executable, "-m", "benthic", "--version"])
    assert done.stdout.startswith("benthic 0.")


MISTAKES = {
    "unknown verb": (["fly"], "fly"),
    "unknown option": (["serve", "--prt", "3"], "--prt"),
    "no number": (["serve", "--port", "many"], "--port"),
    "port out of range": (["serve", "--port", "99999"], "99999"),
    "unknown leaf": (["serve", "--engine.max_num_seq", "3"], "did you mean engine.max_num_seqs"),
    "bad leaf": (["serve", "--server.max_body_bytes", "-1"], "max_body_bytes"),
    "nearly a released model": (["inspect", "deepseek-v4-flsh"], "did you mean 'deepseek-v4-flash'"),
    "nearly a bundled model": (["generate", "x", "--model", "tinny"], "did you mean 'tiny'"),
    "a model that is nowhere": (["chat", "nope"], "bundled model (tiny)"),
    "empty model": (["inspect", ""], "the model's name is empty"),
    "empty model to chat": (["chat", ""], "model is ''; it must be"),
    "no such model": (["inspect", "no-such-model"], "no-such-model"),
    "no such file": (["generate", "--file", "/no/such/file"], "/no/such/file"),
    "two prompts": (["generate", "hello", "--file", "x"], "hello"),
    "bad device": (["generate", "hello", "--device", "abacus"], "abacus"),
    "bad dtype": (["generate", "hello", "--dtype", "int3"], "int3"),
    "bad layout": (["convert", "a", "b", "--layout", "mine"], "mine"),
    "no recipe": (["train", "/no/such/recipe.toml"], "/no/such/recipe.toml"),
    "leaf of a verb without leaves": (["inspect", "tiny", "--foo.bar", "3"], "no such option --foo.bar"),
    "leaf of convert": (["convert", "a", "b", "--engine.num_threads=2"], "no such option --engine.num_threads"),
    "leaf before the verb": (["--foo.bar", "3", "inspect"], "no such option --foo.bar"),
    "unknown table": (["generate", "x", "--foo.bar", "3"], "no such option --foo.bar"),
    "server leaf of chat": (["chat", "--server.port", "3"], "no such option --server.port"),
    "unknown engine leaf": (["generate", "x", "--engine.nonsense", "3"], "unknown key engine.nonsense"),
    "unknown engine leaf, raw": (["generate", "x", "--raw", "--engine.nonsense", "3"], "engine.nonsense"),
    "bad engine leaf": (["eval", "--engine.num_threads", "0"], "num_threads is 0"),
    "leaf without value": (["serve", "--server.api_key"], "server.api_key has no value; it must be a string"),
    "leaf without value before another": (["serve", "--engine.num_threads", "--port", "1"], "engine.num_threads"),
    "prompt that is not UTF-8": (["generate", "caf\udce9"], "the prompt is not UTF-8"),
    "system prompt that is not UTF-8": (["chat", "--system", "caf\udce9"], "--system is not UTF-8"),
    "temperature out of range": (["generate", "x", "--temperature", "-1"], "temperature is -1"),
    "temperature out of range, raw": (["generate", "x", "--raw", "--temperature", "-1"], "temperature is -1"),
    "top_p out of range": (["chat", "--top-p", "2"], "top_p is 2"),
    "no tokens": (["chat", "--max-tokens", "0"], "max_tokens is 0"),
    "seed out of range": (["generate", "x", "--seed", str(2**70)], "seed is"),
    "no task": (["eval", "--task", "juggling"], "juggling"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, reason = MISTAKES[name]
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert reason in captured.err
    assert captured.out == ""


def test_a_prompt_file_that_is_not_utf8_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes("caf\u00e9".encode("latin-1"))
    assert run(["generate", "--file", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"error: {path} is not UTF-8 text (byte 0xe9 at position 3); convert it to UTF-8\n"
    )


def test_stdin_that_is_not_utf8_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benthic", "generate"],
        input=b"caf\xe9\n",
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        timeout=120,
    )
    assert done.returncode == 2
    assert b"stdin is not UTF-8 text" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("model=tinny", "did you mean 'tiny'"),
        ("model=giant", "a bundled model (tiny)"),
        ("stages.short.mixture=shrt", "stages.short.mixture: unknown mixture 'shrt'; did you mean 'short'"),
        ("seed=1", "prepare_text.py"),
    ],
)
def test_a_run_that_cannot_start_is_refused_before_anything_slow(
    change: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "tiny.toml"
    assert run(["train", str(recipe), "--dry-run", "--data", str(tmp_path / "none"), "--set", change]) == 2
    captured = capsys.readouterr()
    assert reason in captured.err
    assert (captured.err.count("\n"), captured.out) == (1, "")


@pytest.mark.parametrize("verb", VERBS)
def test_the_list_of_verbs_cuts_no_description(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"  {verb} ")]
    assert line.endswith(".")
    assert not line.endswith("...")


def test_leaves_keep_their_values_and_leave_the_verbs_own_words() -> None:
    words = [
        "serve",
        "--engine.num_threads",
        "2",
        "model",
        "--server.api_key=a=b",
        "--server.strict_fields",
        "--port",
        "1",
    ]
    own, leaves = separate_leaves(words)
    assert own == ["serve", "model", "--port", "1"]
    assert leaves == ["--engine.num_threads", "2", "--server.api_key=a=b", "--server.strict_fields"]
    options = read_serve_options({"port": 1, "served_name": None}, leaves)
    assert (options.engine.num_threads, options.server.api_key, options.server.strict_fields) == (2, "a=b", True)


def test_words_after_two_dashes_are_never_leaves() -> None:
    assert separate_leaves(["generate", "--", "--a.b", "c"]).own == ["generate", "--", "--a.b", "c"]


@pytest.mark.parametrize("name", ["123", "true", 'with "quotes"', "a=b"])
def test_a_served_name_stays_text(name: str) -> None:
    assert read_serve_options({"served_name": name}, []).server.served_name == name


def test_a_leaf_beats_an_option_and_unknown_tables_are_refused() -> None:
    assert read_serve_options({"port": 1}, ["--server.port", "2"]).server.port == 2
    with pytest.raises(ConfigError, match="motor"):
        read_serve_options({}, ["--motor.size", "2"])


def test_a_file_configures_a_server_and_options_beat_it(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('[server]\napi_keys = ["one", "two"]\nport = 1\nhost = "0.0.0.0"\n[engine]\nmax_num_seqs = 3\n')
    read = read_serve_options({"port": 2, "host": None}, ["--engine.max_num_seqs", "4"], file)
    assert (read.server.api_keys, read.server.port, read.server.host) == (("one", "two"), 2, "0.0.0.0")
    assert read.engine.max_num_seqs == 4
    file.write_text("[server]\nprot = 1\n")
    with pytest.raises(ConfigError, match=r"server\.toml.*server\.prot; did you mean server\.port"):
        read_serve_options({}, [], file)
    with pytest.raises(ConfigError, match="cannot read"):
        read_serve_options({}, [], tmp_path / "none.toml")


def test_a_file_is_read_before_anything_is_loaded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["serve", "--config", str(tmp_path / "none.toml")]) == 2
    assert "none.toml" in capsys.readouterr().err


def test_inspect_prints_the_released_models_to_the_byte(capsys: pytest.CaptureFixture[str]) -> None:
    for name, num_tensors, num_bytes in (
        ("deepseek-v4-flash", 69_187, 159_609_485_896),
        ("deepseek-v4-pro", 145_116, 864_704_792_696),
    ):
        assert run(["inspect", name]) == 0
        text = capsys.readouterr().out
        assert f"{num_tensors:,}" in text
        assert f"{num_bytes:,}" in text


def test_inspect_speaks_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "deepseek-v4-flash", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_tensors"], found["num_bytes"]) == (69_187, 159_609_485_896)


def test_whoever_reads_the_output_may_leave_early() -> None:
    done = execute(["bash", "-c", f"{sys.executable} -m benthic inspect deepseek-v4-flash --tensors | head -3"])
    assert len(done.stdout.splitlines()) == 3
    assert "Traceback" not in done.stderr


def test_compiling_is_announced_once_and_using_what_is_compiled_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    from numba import njit

    def double(x: int) -> int:
        return 2 * x

    one, other = njit(double), njit(double)
    with compilation_notice():
        one(1)
        other(1)
    assert capsys.readouterr().err == f"{NOTICE}\n"
    with compilation_notice():
        one(2)
    assert capsys.readouterr().err == ""
