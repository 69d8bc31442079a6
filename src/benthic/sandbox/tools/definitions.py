"""The tools that a model is offered in a sandbox, as the function schemas of OpenAI's protocol.

Every parameter says its type and meaning: the schema is both what the model reads and what its arguments are checked
against. Paths are relative to the
sandbox's working folder, or absolute.
"""

from collections.abc import Iterable
from typing import Any

from benthic.errors import ConfigError


def function_schema(name: str, description: str, parameters: dict[str, Any], required: Iterable[str]) -> dict[str, Any]:
    """One entry of a request's `tools`."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": parameters,
                "required": list(required),
                "additionalProperties": False,
            },
        },
    }


def schemas_of(names: Iterable[str]) -> list[dict[str, Any]]:
    """Schemas of tools by name, in the order of the names.

    Raises:
        ConfigError: there is no tool of a name.
    """
    chosen = list(names)
    unknown = [name for name in chosen if name not in SCHEMAS]
    if unknown:
        raise ConfigError(f"there is no tool named {unknown[0]!r}; there are {', '.join(SCHEMAS)}")
    return [SCHEMAS[name] for name in chosen]


_PATH = {"type": "string", "description": "Path of the file."}

SCHEMAS: dict[str, dict[str, Any]] = {
    schema["function"]["name"]: schema
    for schema in (
        function_schema(
            "bash",
            "Run a command in a shell. The folder and variables stay from one command to the next. "
            "Output is returned when the command has ended.",
            {
                "command": {"type": "string", "description": "The command, or several lines of them."},
                "timeout": {"type": "number", "description": "Seconds after which it is ended."},
            },
            ["command"],
        ),
        function_schema(
            "python",
            "Run a Python program in the working folder. Only what it prints is returned.",
            {
                "code": {"type": "string", "description": "The program's text."},
                "timeout": {"type": "number", "description": "Seconds after which it is ended."},
            },
            ["code"],
        ),
        function_schema(
            "read_file",
            "Read a text file, or some of its lines.",
            {
                "path": _PATH,
                "first_line": {"type": "integer", "description": "Counted from 1."},
                "num_lines": {"type": "integer", "description": "How many lines at the most."},
            },
            ["path"],
        ),
        function_schema(
            "write_file",
            "Write a file; folders on the way are made, and what was in the file is replaced.",
            {"path": _PATH, "content": {"type": "string", "description": "The whole new text."}},
            ["path", "content"],
        ),
        function_schema(
            "edit_file",
            "Replace a piece of text in a file. The piece must stand there exactly once unless all are to be replaced.",
            {
                "path": _PATH,
                "old": {"type": "string", "description": "The text to replace, to the letter."},
                "new": {"type": "string", "description": "What stands there afterwards."},
                "all": {"type": "boolean", "description": "Replace every occurrence."},
            },
            ["path", "old", "new"],
        ),
        function_schema(
            "submit",
            "Hand in the work. Nothing can be done afterwards.",
            {"answer": {"type": "string", "description": "The final answer, where the task asks for one."}},
            [],
        ),
    )
}
