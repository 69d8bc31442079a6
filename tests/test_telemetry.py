"""Log lines: one form for people, one for machines, and nothing in them that an outsider could forge a line with."""

import json
import logging
import sys

import pytest

from benthic.telemetry import JsonFormatter, TextFormatter, figures


def record(message: str, **values: object) -> logging.LogRecord:
    made = logging.LogRecord("benthic.requests", logging.INFO, __file__, 1, message, None, None)
    made.__dict__.update(figures(**values))
    made.created = 0.25
    return made


def test_a_json_line_is_one_object_with_the_figures_beside_the_message() -> None:
    line = JsonFormatter().format(record("request", status=200, route=None, duration_s=0.5))
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.250Z",
        "level": "info",
        "logger": "benthic.requests",
        "message": "request",
        "status": 200,
        "duration_s": 0.5,
    }


def test_a_text_line_says_the_same() -> None:
    line = TextFormatter().format(record("request", status=200, duration_s=0.123456))
    assert line == "00:00:00.250 info request status=200 duration_s=0.1235"


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()], ids=["json", "text"])
@pytest.mark.parametrize("value", ["/a\nfake line", "/a\x1b[2J", "a b=c", '"', "", "é\u2028x"], ids=repr)
def test_what_comes_from_outside_stays_on_its_line_and_in_its_field(formatter: logging.Formatter, value: str) -> None:
    line = formatter.format(record("request", path=value))
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    if isinstance(formatter, TextFormatter):
        assert json.loads(line.partition("path=")[2]) == value


def test_an_exception_is_told_in_both_forms() -> None:
    failed = record("it failed")
    try:
        raise ValueError("deep inside")
    except ValueError:
        failed.exc_info = sys.exc_info()
    assert "deep inside" in json.loads(JsonFormatter().format(failed))["exception"]
    assert "ValueError: deep inside" in TextFormatter().format(failed)
