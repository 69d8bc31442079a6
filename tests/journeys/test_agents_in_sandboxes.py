"""An agent solves a task with files in each kind of sandbox; killed in the middle, it goes on, and nobody can tell."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benthic.sandbox.records import KINDS, Kind
from benthic.text.tokenizer import EOS, Tokenizer
from tests.sandbox.kinds import require_kind
from tests.server.conftest import Live, live, tokenizer  # noqa: F401 - fixtures
from tests.server.scripted_engine import answers_by_prompt

REPOSITORY = Path(__file__).parents[2]
SUM = "sleep 0.3; n=0; while read x; do n=$((n+x)); done < numbers.txt; echo ran >> runs; echo total=$n | tee total.txt"


def call(tool: str, **arguments: str) -> str:
    parameters = "".join(
        f'<｜DSML｜parameter name="{name}" string="true">{value}</｜DSML｜parameter>\n'
        for name, value in arguments.items()
    )
    invoke = f'<｜DSML｜invoke name="{tool}">\n{parameters}</｜DSML｜invoke>'
    return f"<｜DSML｜tool_calls>\n{invoke}\n</｜DSML｜tool_calls>{EOS}"


ANSWERS = {
    "[replaced 1 time]": call("submit", answer="7"),
    "total=7": call("edit_file", path="total.txt", old="total=", new="the sum is "),
    "[4 bytes written]": call("bash", command=SUM),
    "": call("write_file", path="numbers.txt", content="3\n4\n"),
}


@pytest.fixture
def model(live: Callable[..., Live], tokenizer: Tokenizer) -> Iterator[Live]:  # noqa: F811
    """The scripted model behind HTTP: real prompts, tokens and parsing."""
    with live(answers_by_prompt(tokenizer, ANSWERS), context_len=8192) as up:
        yield up


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sandboxes")


def start(url: str, root: Path, kind: Kind, journal: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.journeys.agent_process", url, str(root), kind, str(journal)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY)


def finish(process: "subprocess.Popen[str]") -> dict[str, Any]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def without_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A server gives each call an id of its own."""
    text = json.dumps(messages)
    for message in messages:
        for one in message.get("tool_calls", ()):
            text = text.replace(one["id"], f"call-{text.index(one['id'])}")
    found: list[dict[str, Any]] = json.loads(text)
    return found


def said(journal: Path) -> int:
    return journal.read_text().count('"said"') if journal.exists() else 0


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_that_is_killed_in_the_middle_ends_like_one_that_was_not(
    kind: Kind, model: Live, root: Path, tmp_path: Path
) -> None:
    require_kind(kind)
    undisturbed = finish(start(model.url, root, kind, tmp_path / "undisturbed"))
    assert undisturbed["reward"] == 1, undisturbed
    assert [message["content"] for message in undisturbed["messages"] if message["role"] == "tool"] == [
        "[4 bytes written]",
        "total=7",
        "[replaced 1 time]",
        "[handed in]",
    ]
    journal = tmp_path / "disturbed"
    killed = start(model.url, root, kind, journal)
    while said(journal) < 2:
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.01)
    time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    resumed = finish(start(model.url, root, kind, journal))
    assert resumed["num_replayed"] == 2
    assert resumed["reward"] == 1, "the second step ran once"
    assert without_ids(resumed["messages"]) == without_ids(undisturbed["messages"])
