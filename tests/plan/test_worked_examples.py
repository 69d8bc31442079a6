"""The page's examples are what the command prints."""

import re
from pathlib import Path

import pytest

from benthic.cli.command import run
from benthic.plan.hardware import DEVICES
from benthic.plan.subject import DENSE

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "plan.md").read_text()
EXAMPLES = [
    (command.split(), lines.splitlines())
    for block in re.findall(r"```\n(\$ .*?)```", PAGE, re.DOTALL)
    for command, lines in re.findall(r"\$ benthic (.*)\n((?:(?!\$).*\n)*)", block)
]


def squeezed(text: str) -> str:
    """Columns are as wide as the whole table wants them."""
    return re.sub(r" +", " ", text)


@pytest.mark.parametrize(("words", "lines"), EXAMPLES, ids=lambda value: " ".join(value)[:60])
def test_an_example_prints_its_lines(words: list[str], lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 0
    printed = squeezed(capsys.readouterr().out)
    assert lines
    assert [line for line in lines if squeezed(line) not in printed] == []


def test_all_examples_are_found() -> None:
    assert len(EXAMPLES) == PAGE.count("$ benthic") >= 5


def test_the_page_names_every_device_and_every_dense_model() -> None:
    assert [name for name in (*DEVICES, *DENSE) if f"`{name}`" not in PAGE] == []
