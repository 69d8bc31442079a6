"""What a request body may hold is decided before anything reads a field."""

import json

import pytest

from benthic.errors import RequestError
from benthic.server.body import MAX_DEPTH, parse_object
from benthic.server.errors import ApiError


def nested(depth: int) -> bytes:
    return b'{"a":' + b"[" * depth + b"]" * depth + b"}"


BAD_BODIES = {
    "empty": (b"", "not JSON"),
    "no json": (b"hello", "not JSON"),
    "cut short": (b'{"a": [1, 2', "line 1 column"),
    "array": (b"[1, 2]", "array"),
    "text": (b'"prompt"', "string"),
    "null": (b"null", "null"),
    "number": (b"1.5", "number"),
    "true": (b"true", "boolean"),
    "not utf-8": (b'{"a": "\xff"}', "byte 7 is 0xff"),
    "nan": (b'{"temperature": NaN}', "NaN"),
    "infinity": (b'{"temperature": -Infinity}', "-Infinity"),
    "overflowing float": (b'{"temperature": 1e400}', "temperature"),
    "huge integer": (b'{"seed": ' + b"9" * 30 + b"}", "seed"),
    "endless integer": (b'{"seed": ' + b"9" * 9999 + b"}", "number"),
    "lone surrogate": (rb'{"prompt": "a\ud800b"}', "U+D800 at character 1"),
    "lone surrogates in a key and its value": (rb'{"\udfff\ud800": "\ud800"}', "U+DFFF"),
    "lone surrogate in a key of a number": (rb'{"\udfff": 1e999}', "U+DFFF"),
    "lone surrogate in a key": (rb'{"\udfff": 1}', "U+DFFF"),
    "lone surrogate deep inside": (rb'{"messages": [{"content": "\ud800"}]}', "messages"),
    "deep": (nested(MAX_DEPTH + 5), "too deep"),
    "abysmal": (nested(100_000), "too deep"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_bad_body_is_refused_with_its_reason(name: str) -> None:
    raw, reason = BAD_BODIES[name]
    with pytest.raises(RequestError, match=".*") as caught:
        parse_object(raw)
    assert reason in str(caught.value)
    assert "set_int_max_str_digits" not in str(caught.value)


def test_a_good_body_comes_out_as_it_went_in() -> None:
    body = {"model": "tiny", "text": "Grüße, 世界 🌊\u2028", "x": [1, 2.5, None, True, {"y": -(2**63)}], "z": 2**64 - 1}
    assert parse_object(json.dumps(body).encode()) == body
    assert parse_object(json.dumps(body, ensure_ascii=False).encode()) == body


def test_the_field_that_holds_the_fault_is_named() -> None:
    with pytest.raises(RequestError) as caught:
        parse_object(rb'{"prompt": {"inner": ["\ud83d"]}}')
    assert caught.value.param == "prompt"


def test_an_error_can_be_written_whatever_stood_in_the_request() -> None:
    error = ApiError(400, "unknown field \udfff", param="\ud800x")
    assert json.dumps(error.body(), ensure_ascii=False).encode()
    assert (error.message, error.param) == ("unknown field \\udfff", "\\ud800x")
