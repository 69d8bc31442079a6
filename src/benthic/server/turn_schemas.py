"""Schemas of what stands in a conversation: turns, tools and the choice among them, for each protocol."""

from benthic.server.schema_kinds import Schema, array, either, flag, members, needed, text
from benthic.text.turns import CHAT_ROLES

_STRING: Schema = {"type": "string"}
_ANY: Schema = {"type": "object"}
_NAME: Schema = {"type": "string", "pattern": "^[a-zA-Z0-9_-]+$"}
_PARAMETERS: Schema = {"type": ["object", "boolean", "null"], "description": "a JSON schema"}
_TEXT_PART = needed(members({"type": {"const": "text"}, "text": _STRING}, required=["type", "text"]))
_CALL = needed(
    members(
        {
            "id": _STRING,
            "type": {"const": "function"},
            "function": needed(
                members({"name": _STRING, "arguments": {"type": ["string", "object"]}}, required=["name", "arguments"])
            ),
        },
        required=["id", "function"],
    )
)

_CONTENT = either(_STRING, needed(array(_TEXT_PART)))
_ASSISTANT: dict[str, Schema] = {
    "role": {"const": "assistant"},
    "reasoning_content": text("what it thought"),
    "name": text(),
}

CHAT_TURN = either(
    needed(
        members(
            {"role": {"enum": [role for role in CHAT_ROLES if role not in ("assistant", "tool")]}, "content": _CONTENT}
            | {"name": text()},
            required=["role", "content"],
        )
    ),
    needed(
        members({**_ASSISTANT, "content": _CONTENT, "tool_calls": array(_CALL, fewest=1)}, required=["role", "content"])
    ),
    needed(
        members(
            {**_ASSISTANT, "content": either({"type": "null"}, _CONTENT), "tool_calls": needed(array(_CALL, fewest=1))},
            required=["role", "tool_calls"],
        )
    ),
    needed(
        members(
            {
                "role": {"const": "tool"},
                "content": _CONTENT,
                "tool_call_id": {**_STRING, "description": "what this answers"},
            },
            required=["role", "content", "tool_call_id"],
        )
    ),
)
MESSAGES_TURN = needed(
    members(
        {"role": {"enum": ["user", "assistant", "system"]}, "content": either(_STRING, needed(array(_ANY)))},
        required=["role", "content"],
    )
)
RESPONSES_ITEM = needed(
    members({"role": {"enum": ["user", "assistant", "system", "developer"]}, "type": _STRING}, "a message, or an item")
)

_FUNCTION = needed(
    members(
        {"name": _NAME, "description": text(), "strict": flag(), "parameters": _PARAMETERS},
        required=["name"],
    )
)
_CHAT_TOOL = needed(members({"type": {"const": "function"}, "function": _FUNCTION}, required=["type", "function"]))
TOOLS: dict[str, Schema] = {
    "C": array(_CHAT_TOOL, "functions that the model may call"),
    "R": array({"type": "object", "properties": {"type": _STRING}}, "functions that the model may call"),
    "M": array({"type": "object", "properties": {"name": _STRING}}, "functions that the model may call"),
}

_MODES: Schema = {"enum": ["none", "auto", "required", None]}
_NAMED = needed(members({"name": _STRING}, required=["name"]))
_ALLOWED = needed(
    members({"type": {"const": "allowed_tools"}, "mode": {"enum": ["auto", "required"]}}, required=["type"])
)
TOOL_CHOICES: dict[str, Schema] = {
    "C": either(
        _MODES,
        needed(members({"type": {"const": "function"}, "function": _NAMED}, required=["type", "function"])),
        _ALLOWED,
    ),
    "R": either(_MODES, needed(members({"type": _STRING}, required=["type"]))),
    "M": members({"type": {"enum": ["auto", "any", "none", "tool"]}, "name": _STRING}, required=["type"]),
}
