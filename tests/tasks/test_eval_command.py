"""The command that examines a model."""

import pytest

from benthic.cli.command import USER_MISTAKE, run


def test_an_unknown_task_is_refused_with_the_names_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["eval", "--task", "cooking"]) == USER_MISTAKE
    message = capsys.readouterr().err
    assert "cooking" in message
    assert "subtraction" in message


@pytest.mark.parametrize("option", ["--per-cell", "--at-once"])
def test_counts_below_one_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["eval", option, "0"]) == USER_MISTAKE
    assert option in capsys.readouterr().err
