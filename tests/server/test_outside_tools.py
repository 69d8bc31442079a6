"""The programs with which others measure servers work against this one, and agree with it."""

import pytest

from benchmarks.server import guidellm_agreement, lm_eval_agreement
from benchmarks.server.outside import find_program, serving

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]
_SAME = 0.05
_EXACT = ("requests", "prompt tokens", "generated tokens")


def program(variable: str, package: str) -> str:
    """Where a program is; without it the test is skipped."""
    found = find_program(variable, package.partition("[")[0])
    if found is None:
        pytest.skip(f"the package {package} is not installed; set {variable} to its program")
    return found


def test_guidellm_has_no_error_and_agrees_with_the_metrics() -> None:
    tool = program(guidellm_agreement.VARIABLE, "guidellm")
    with serving() as up:
        rows = guidellm_agreement.measure(tool, up.url, guidellm_agreement.Load())
    print(guidellm_agreement.table(rows))
    for row in rows:
        assert row.difference <= (0 if row.name in _EXACT else _SAME), row


def test_lm_eval_reads_what_the_library_computes() -> None:
    tool = program(lm_eval_agreement.VARIABLE, "lm-eval[api]")
    with serving() as up:
        rows = lm_eval_agreement.measure(tool, up.url)
    print(lm_eval_agreement.table(rows))
    assert len(rows) == 2 * sum(len(task["choices"]) for task in lm_eval_agreement.CHOICES) + len(
        lm_eval_agreement.QUESTIONS
    )
    assert [row for row in rows if not row.is_equal] == []
    assert {True, False} <= {row.lm_eval for row in rows}, "some choice is the most likely continuation, some is not"
