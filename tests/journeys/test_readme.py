"""The README's example runs as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_readme_has_an_example_of_about_ten_lines() -> None:
    assert len(BLOCKS) == 1
    assert len(BLOCKS[0].splitlines()) <= 12


def test_the_example_thinks_answers_rightly_and_finds_equal_bits(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(BLOCKS[0], str(README), "exec"), {})
    *reply, is_equal = capsys.readouterr().out.splitlines()
    reasoning, end_of_thinking, content = "\n".join(reply).partition("</think>")
    assert reasoning and end_of_thinking
    assert "632" in content
    assert is_equal == "True"
