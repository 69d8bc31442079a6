"""What each field of a request body may be: the table behind /openapi.json. docs/fields.md says what they mean.

C: chat completions, R: Responses, M: Messages, T: plain completions. A schema says what is refused for its own sake;
rules between fields are not in it.
"""

from typing import Any

from benthic.server.schema_kinds import (
    Schema,
    array,
    choice,
    either,
    flag,
    integer,
    members,
    needed,
    number,
    only,
    strings,
    text,
)
from benthic.server.turn_schemas import CHAT_TURN, MESSAGES_TURN, RESPONSES_ITEM, TOOL_CHOICES, TOOLS
from benthic.text.grammar_fields import MAX_CHOICES
from benthic.text.sampling_fields import (
    MAX_BIAS,
    MAX_BIASES,
    MAX_PENALTY,
    MAX_PRIORITY,
    MAX_PROMPT_LOGPROBS,
    MAX_REPETITION,
    MAX_SALT_LEN,
    MAX_TIMEOUT_S,
)
from benthic.text.thinking import EFFORTS

_MOST = (1 << 31) - 1
_SEED = 1 << 63
_GRAMMAR = "one of the ways to say what the answer must conform to"
_EXTENSION = "an extension"
_NEUTRAL = "changes nothing"
_FORMAT = {"type": {"enum": ["text", "json_object", "json_schema", "regex", "ebnf", "grammar", "structural_tag"]}}
_JSON_SCHEMA: Schema = {"type": ["object", "boolean"]}
_BIAS: Schema = {
    "type": ["object", "null"],
    "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
    "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
    "maxProperties": MAX_BIASES,
    "description": "token ids (in decimal) and what is added to their logits",
}
_EFFORT = choice(EFFORTS, "none switches thinking off")

_ROWS: tuple[tuple[str, str, Schema], ...] = (
    ("CRMT", "model", text("the served name; any other is 404")),
    ("C", "messages", needed(array(CHAT_TURN, fewest=1))),
    ("M", "messages", needed(array(MESSAGES_TURN, fewest=1))),
    ("R", "input", either({"type": "string"}, needed(array(RESPONSES_ITEM, fewest=1)))),
    ("R", "instructions", text("system text")),
    ("M", "system", either({"type": ["string", "null"]}, array({"type": "object"}), note="system text")),
    ("T", "add_special_tokens", flag("BOS in front of a text")),
    ("T", "suffix", only("", note="refused: text is only continued at its end")),
    ("CRMT", "stream", flag("events as they come")),
    ("C", "stream_options", members({"include_usage": flag()}, "belongs to streams")),
    ("T", "stream_options", members({"include_usage": flag()}, "belongs to streams")),
    ("R", "stream_options", members({}, _NEUTRAL)),
    ("C", "tools", TOOLS["C"]),
    ("R", "tools", TOOLS["R"]),
    ("M", "tools", TOOLS["M"]),
    ("C", "tool_choice", TOOL_CHOICES["C"]),
    ("R", "tool_choice", TOOL_CHOICES["R"]),
    ("M", "tool_choice", TOOL_CHOICES["M"]),
    ("CR", "parallel_tool_calls", flag("false: at most one call")),
    ("R", "max_tool_calls", integer(1, _MOST, _NEUTRAL)),
    ("CT", "response_format", members(_FORMAT, required=["type"])),
    ("R", "text", members({"format": members(_FORMAT, required=["type"])})),
    ("CRM", "output_config", members({"effort": _EFFORT})),
    ("M", "output_format", members({"type": {"const": "json_schema"}, "schema": {"type": "object"}})),
    ("C", "max_tokens", integer(1, _MOST, "most tokens of the answer, reasoning included")),
    ("C", "max_completion_tokens", integer(1, _MOST, "the same as max_tokens")),
    ("M", "max_tokens", integer(1, _MOST, "most tokens of the answer, reasoning included; may be missing")),
    ("R", "max_output_tokens", integer(1, _MOST, "most tokens of the answer, reasoning included")),
    ("T", "max_tokens", integer(0, _MOST, "16 unless given; 0 scores the prompt")),
    ("T", "max_completion_tokens", integer(0, _MOST, "another name of max_tokens")),
    ("CRMT", "min_tokens", integer(0, _MOST, "no end before so many")),
    ("CT", "stop", strings(16, "strings that end the answer")),
    ("M", "stop_sequences", strings(16, "strings that end the answer")),
    ("CRMT", "stop_in_reasoning", flag("whether they end reasoning too")),
    ("CRMT", "stop_token_ids", array({"type": "integer", "minimum": 0, "maximum": _MOST}, "ids that end it")),
    ("T", "include_stop_str_in_output", flag("shows the string that ended it")),
    ("CRMT", "ignore_eos", flag("goes on after the end token")),
    ("R", "truncation", choice(("auto", "disabled"), "a prompt that is too long is refused")),
    ("RM", "context_management", {"type": ["object", "array", "null"], "description": _NEUTRAL}),
    ("CRMT", "timeout_s", number(0, MAX_TIMEOUT_S, "seconds from arrival; then 504", above=True)),
    ("CRM", "reasoning_effort", _EFFORT),
    ("CRM", "reasoning", members({"effort": _EFFORT, "enabled": flag()})),
    (
        "CRM",
        "thinking",
        either(
            {"type": ["boolean", "null"]},
            needed(
                members(
                    {"type": {"enum": ["enabled", "adaptive", "disabled"]}, "budget_tokens": integer(0, _MOST)},
                    required=["type"],
                )
            ),
        ),
    ),
    ("CRM", "thinking_budget", integer(0, _MOST, "most tokens of reasoning")),
    ("CRM", "enable_thinking", flag()),
    (
        "CRM",
        "chat_template_kwargs",
        members({"thinking": flag(), "enable_thinking": flag(), "reasoning_effort": _EFFORT}),
    ),
    ("R", "include", array({"type": "string"}, "what a reply shall hold beside its text")),
    ("CRMT", "temperature", number(0, 2, "0 takes the most likely token")),
    ("CRMT", "top_p", number(0, 1, above=True)),
    ("CRMT", "top_k", integer(-1, _MOST, "-1 and 0 are off")),
    ("CRMT", "min_p", number(0, 1)),
    ("CRMT", "frequency_penalty", number(-MAX_PENALTY, MAX_PENALTY)),
    ("CRMT", "presence_penalty", number(-MAX_PENALTY, MAX_PENALTY)),
    ("CRMT", "repetition_penalty", number(1 / MAX_REPETITION, MAX_REPETITION, "1 is off")),
    ("CRMT", "logit_bias", _BIAS),
    ("CRMT", "seed", integer(-_SEED, _SEED - 1, "the same seed, the same answer, at any load")),
    ("CT", "n", integer(1, 128, "answers to one prompt")),
    ("T", "best_of", integer(1, 128, "n or nothing")),
    ("C", "logprobs", flag()),
    ("T", "logprobs", integer(0, 20, "alternatives at each token")),
    ("CR", "top_logprobs", integer(0, 20, "alternatives at each token")),
    ("T", "echo", flag("puts the prompt in front")),
    ("CRMT", "prompt_logprobs", integer(0, MAX_PROMPT_LOGPROBS, _EXTENSION)),
    ("CRMT", "return_token_ids", flag(_EXTENSION)),
    ("CRMT", "return_report", flag(_EXTENSION)),
    ("CRMT", "return_routed_experts", flag("needs engine.keep_routes")),
    ("CRMT", "return_picks", flag("needs engine.keep_picks")),
    ("CRMT", "priority", integer(-MAX_PRIORITY, MAX_PRIORITY, "higher goes first")),
    ("CRMT", "cache_salt", text("only equal salts share prefixes", shortest=1, longest=MAX_SALT_LEN)),
    ("CRMT", "regex", text(_GRAMMAR, shortest=1)),
    ("CRMT", "ebnf", text(_GRAMMAR, shortest=1)),
    ("CRMT", "structural_tag", {"type": ["object", "string", "null"], "description": _GRAMMAR}),
    ("CRMT", "guided_json", {"type": ["object", "boolean", "string", "null"], "description": _GRAMMAR}),
    ("CRMT", "guided_regex", text(_GRAMMAR, shortest=1)),
    ("CRMT", "guided_choice", array({"type": "string", "minLength": 1}, _GRAMMAR, fewest=1, most=MAX_CHOICES)),
    ("CRMT", "guided_grammar", text(_GRAMMAR, shortest=1)),
    ("CRMT", "structured_outputs", members({"regex": text(shortest=1), "grammar": text(shortest=1)}, _GRAMMAR)),
    ("CRMT", "user", text(_NEUTRAL)),
    ("CRMT", "service_tier", text(_NEUTRAL)),
    ("CRMT", "metadata", members({}, _NEUTRAL)),
    ("CR", "store", flag("nothing is stored")),
    ("CR", "prompt_cache_key", text(_NEUTRAL)),
    ("CR", "prompt_cache_retention", text(_NEUTRAL)),
    ("CR", "prompt_cache_options", members({}, _NEUTRAL)),
    ("CR", "safety_identifier", text(_NEUTRAL)),
    ("C", "verbosity", text(_NEUTRAL)),
    ("M", "cache_control", members({}, _NEUTRAL)),
    ("M", "inference_geo", text(_NEUTRAL)),
    ("M", "speed", text(_NEUTRAL)),
)

LETTERS = {"chat": "C", "responses": "R", "messages": "M", "completions": "T"}
_REQUIRED = {"C": ["messages"], "R": ["input"], "M": ["messages"], "T": ["prompt"]}


def body_schema(endpoint: str, vocab_size: int) -> dict[str, Any]:
    """The schema of an endpoint's body: "chat", "responses", "messages" or "completions"."""
    letter = LETTERS[endpoint]
    properties = {name: schema for letters, name, schema in _ROWS if letter in letters}
    if letter == "T":
        properties["prompt"] = _prompt(vocab_size)
    return {"type": "object", "properties": properties, "required": _REQUIRED[letter]}


def _prompt(vocab_size: int) -> Schema:
    texts: Schema = {"type": "string", "minLength": 1}
    ids: Schema = {"type": "array", "items": token_id(vocab_size), "minItems": 1}
    return {"anyOf": [texts, ids, *({"type": "array", "items": item, "minItems": 1} for item in (texts, ids))]}


def token_id(vocab_size: int) -> Schema:
    """An id of the vocabulary."""
    return {"type": "integer", "minimum": 0, "maximum": vocab_size - 1}
