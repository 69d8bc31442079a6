import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benthic.text.json_prefix import JsonPrefix

VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def take(text: str, size: int) -> str:
    prefix = JsonPrefix()
    return "".join(prefix.take(text[start : start + size]) for start in range(0, len(text), size))


@given(VALUES, st.booleans(), st.sampled_from([None, 2]), st.integers(1, 9))
def test_json_passes_whole(value: Any, is_ascii: bool, indent: int | None, size: int) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    assert take(text, size) == text


@given(VALUES, st.text(alphabet='{}[]",:\\ aetrufnl0-.1u\n', min_size=1, max_size=3), st.data())
def test_what_passes_can_become_json_and_what_is_stopped_cannot(value: Any, wrong: str, data: Any) -> None:
    text = json.dumps({"k": value})
    place = data.draw(st.integers(1, len(text)))
    damaged = text[:place] + wrong + text[place:]
    passed = take(damaged, 1)
    assert damaged.startswith(passed)
    pydantic_core = pytest.importorskip("pydantic_core")
    pydantic_core.from_json(passed, allow_partial="trailing-strings")
    try:
        json.dumps(json.loads(damaged), ensure_ascii=False).encode()
    except ValueError:
        return
    assert passed == damaged


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ('{"a": abc}', '{"a": '),
        ('{"a": "x"', '{"a": "x"'),
        ('{"a">x', '{"a"'),
        ('{"a": 1, "b": tru e}', '{"a": 1, "b": tru'),
        ('{"a": 01}', '{"a": 0'),
        ('{"a": 1} {', '{"a": 1} '),
        ('{"a": "\\x"}', '{"a": "\\'),
        ('{"a": "\n"}', '{"a": "'),
        ('["\\ud83d\\ude00"]', '["\\ud83d\\ude00"]'),
        ('["\\ud83d"]', '["\\ud83d'),
        ('["\\ude00"]', '["\\ude0'),
        ("[1,]", "[1,"),
        ("{,", "{"),
    ],
)
def test_a_text_passes_up_to_where_it_stops_being_json(text: str, passed: str) -> None:
    assert take(text, 3) == passed
