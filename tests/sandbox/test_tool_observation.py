"""Observations are bounded, say what was left out, and say how a command ended unless that was well."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benthic.sandbox.records import Reason, Result
from benthic.sandbox.tools.edit import EditRefused, replace_once
from benthic.sandbox.tools.observation import observe, shorten


def result(**fields: object) -> Result:
    return Result(**{"returncode": 0, "stdout": b"", "stderr": b""} | fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given_result", "shown"),
    [
        (result(stdout=b"a\n"), "a"),
        (result(), "[no output]"),
        (result(stdout=b"a\n", stderr=b"oh\n", returncode=3), "a\n[stderr]\noh\n[exit code 3]"),
        (result(returncode=-9, reason=Reason.SIGNALLED), "[ended by signal 9]"),
        (
            result(returncode=None, reason=Reason.TIMEOUT, stdout=b"x"),
            "x\n[it took too long and was ended with everything it had started]",
        ),
        (result(stdout=b"\xff\xfe"), "\ufffd\ufffd"),
        (result(stdout=b"abcd", dropped_stdout_bytes=10), "ab\n[... 10 bytes were not kept ...]\ncd"),
    ],
)
def test_results_read_as_a_terminal_does(given_result: Result, shown: str) -> None:
    assert observe(given_result) == shown


@given(st.text(max_size=400), st.integers(2, 100))
def test_a_text_is_cut_in_its_middle_between_characters(text: str, bound: int) -> None:
    short = shorten(text, bound)
    if len(text.encode("utf-8", "replace")) <= bound:
        assert short == text
    else:
        head, _, tail = short.partition("\n[... ")
        assert text.startswith(head)
        assert text.endswith(tail.partition("...]\n")[2])


def test_an_edit_wants_its_text_exactly_once() -> None:
    assert replace_once(b"one two", "two", "2") == (b"one 2", 1)
    assert replace_once(b"a a", "a", "b", replaces_all=True) == (b"b b", 2)
    assert replace_once(b"\xffx", "x", "\u00e9") == (b"\xff\xc3\xa9", 1)
    for old, says in (("", "is empty"), ("z", "is not in the file"), ("a", "stands 2 times")):
        with pytest.raises(EditRefused, match=says):
            replace_once(b"a a", old, "b")
