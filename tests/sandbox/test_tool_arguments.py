"""What a model writes as a tool call is either taken, or refused in words that it can act on."""

import json
from typing import Any

import pytest

from benthic.errors import ConfigError
from benthic.sandbox.tools.arguments import BadCall, call_id, read_call
from benthic.sandbox.tools.definitions import SCHEMAS, schemas_of

ALL = tuple(SCHEMAS)


def call(name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": text}, **more}


def test_a_good_call_is_read() -> None:
    found = read_call(call("bash", {"command": "ls", "timeout": 3}), ALL)
    assert (found.id, found.name, found.arguments) == ("c1", "bash", {"command": "ls", "timeout": 3})


def test_arguments_may_come_as_an_object_and_may_be_missing_where_none_is_needed() -> None:
    assert read_call({"id": "x", "function": {"name": "submit", "arguments": {"answer": "4"}}}, ALL).arguments
    assert read_call({"id": "x", "function": {"name": "submit"}}, ALL).arguments == {}


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (None, "names no function"),
        ([], "names no function"),
        ({"function": "bash"}, "names no function"),
        (call("rm", {}), "there is no tool named 'rm'"),
        ({"function": {"name": ["bash"]}}, "there is no tool named"),
        (call("bash", '{"command": '), "are not JSON"),
        (call("bash", "[" * 100_000), "are not JSON"),
        (call("bash", "[1]"), "must be a JSON object"),
        (call("bash", {}), "needs the argument 'command'"),
        (call("bash", {"command": 3}), "'command' must be of type string, and is int"),
        (call("bash", {"command": None}), "'command' must be of type string, and is NoneType"),
        (call("bash", {"command": "ls", "timeout": True}), "'timeout' must be of type number, and is bool"),
        (call("bash", {"command": "ls", "cmd": "ls"}), "takes no argument 'cmd'"),
        (call("read_file", {"path": "a", "first_line": 1.5}), "'first_line' must be of type integer"),
        (call("write_file", '{"path": "a", "content": "\\ud800"}'), "half a surrogate pair"),
    ],
)
def test_a_broken_call_is_refused_in_words(broken: Any, says: str) -> None:
    with pytest.raises(BadCall) as error:
        read_call(broken, ALL)
    assert says in str(error.value)


def test_a_tool_that_is_not_offered_is_refused_and_those_that_are_get_named() -> None:
    with pytest.raises(BadCall, match="the tools are bash, submit"):
        read_call(call("python", {"code": "1"}), ("bash", "submit"))


def test_the_id_of_any_call_is_text() -> None:
    assert [call_id(broken) for broken in (None, {}, {"id": 7}, {"id": "c"})] == ["", "", "", "c"]


def test_schemas_are_given_by_name_and_unknown_names_are_refused() -> None:
    assert [schema["function"]["name"] for schema in schemas_of(["submit", "bash"])] == ["submit", "bash"]
    with pytest.raises(ConfigError, match="there is no tool named 'browser'"):
        schemas_of(["browser"])
    for schema in SCHEMAS.values():
        parameters = schema["function"]["parameters"]
        assert set(parameters["required"]) <= set(parameters["properties"])
