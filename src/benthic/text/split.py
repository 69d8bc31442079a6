"""`split`: a request body becomes the body that deepseek-recipe shall judge, and the extras that it would lose.

The recipe is the only judge of the shape of a conversation, but it ignores or refuses much of what clients send. So
this file takes those fields out, checks them, and rewrites the body to what the recipe understands. Policies:

- **Thinking** is decided in `thinking.py`. With a **forced tool choice** (required, a named tool, Anthropic `any`)
  thinking is off where it is only the default. Where it was asked for, the choice is hidden from the recipe, which
  would refuse it: the grammar forces the call once the thinking is over.
- **What a reply must conform to** is read in `grammar_fields.py`. The recipe sees only formats that the prompt tells
  the model about, and never that a schema or tool is strict: it would refuse more than a grammar has to.
- **Sampling.** Explicit temperature and top_p hold in thinking mode too. Official values stand in only where the
  request and the checkpoint say nothing.
- **max_tokens and max_completion_tokens** mean the same; where both are given they must agree.
- **developer** is read as system. Tool arguments in the history may be an object instead of its JSON text.
- **Fields that would change the reply but cannot be obeyed** are refused unless neutral; **unknown fields** are listed
  in `Split.ignored`, and refused in strict mode.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

from benthic.errors import RequestError
from benthic.text.fields import (
    parse_object,
    read_boolean,
    read_choice,
    read_integer,
    read_integers,
    read_number,
    read_object,
    read_strings,
    refuse,
)
from benthic.text.formats import take_format
from benthic.text.grammar import GrammarSpec
from benthic.text.placement import check_placement
from benthic.text.protocol_fields import (
    KNOWN_FIELDS,
    MAX_TOKENS_FIELD,
    NEUTRAL_VALUES,
    UNSUPPORTED,
    UNSUPPORTED_REASONS,
    Protocol,
    is_neutral,
)
from benthic.text.responses_fields import check_hosted_tools, reported_settings, take_includes, wants_sealed
from benthic.text.sampling_fields import RULE_FIELDS, WISH_FIELDS, Rules, Wishes, read_rules, read_wishes
from benthic.text.shapes import check_list_of_tools, check_shapes
from benthic.text.thinking import Mode, take_mode, write_mode
from benthic.text.tool_choice import ToolWishes, check_tool_choice, is_forced, take_tool_wishes
from benthic.text.turns import rewrite_turns

MAX_UNSIGNED = 2**31 - 1
MAX_STOPS = 16
MAX_SAMPLES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What a request says beside its conversation, checked. None means that it says nothing."""

    mode: Mode
    num_samples: int = 1
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int = 0
    """0 is off; the -1 of other servers is read as 0."""
    min_p: float = 0.0
    seed: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_in_reasoning: bool = False
    stop_token_ids: tuple[int, ...] = ()
    rules: Rules = Rules()
    wishes: Wishes = Wishes()
    include_usage: bool = False
    tools: ToolWishes = ToolWishes()
    """How the reply may call tools."""
    answer: GrammarSpec | None = None
    """What a reply without calls must conform to."""
    is_prefill: bool = False
    """The last Anthropic message is the beginning of the reply."""
    response_schema: dict[str, Any] | None = None
    """Anthropic's output format, which the recipe drops."""


class Split(NamedTuple):
    """`body` goes to the recipe; `model` is the name as asked for, None if absent; `ignored` are unknown fields.

    Only Responses: `reported` is what the reply repeats of the request, `is_sealed` that reasoning comes sealed, too.
    """

    body: dict[str, Any]
    extras: Extras
    model: str | None
    ignored: tuple[str, ...]
    reported: Mapping[str, Any] = {}
    is_sealed: bool = False


def split(
    protocol: Protocol,
    raw: bytes | str | Mapping[str, Any],
    *,
    vocab_size: int = MAX_UNSIGNED,
    default_thinking: bool = True,
    is_strict: bool = False,
) -> Split:
    """Separate a request into what the recipe judges and what we keep. Token ids in it are below `vocab_size`.

    Raises:
        RequestError: bad JSON, or a field with a bad value; `param` names it.
    """
    body = parse_object(raw)
    model = body.pop("model", None)
    if model is not None and not isinstance(model, str):
        refuse("model", model, "a string")
    check_placement(body, protocol)
    _refuse_unsupported(body)
    mode = take_mode(body, protocol, default_thinking)
    ignored = _take_unknown(protocol, body, is_strict)
    rewrite_turns(protocol, body)
    check_list_of_tools(body.get("tools"))
    reported: dict[str, Any] = {}
    is_sealed = False
    if protocol == "responses":
        check_hosted_tools(body.get("tools"))
        take_includes(body)
        reported, is_sealed = reported_settings(body), wants_sealed(body)
    check_tool_choice(protocol, body)
    mode = _reconcile(protocol, body, mode)
    _check_unused(body)
    extras = _take_extras(protocol, body, mode, vocab_size)
    write_mode(body, protocol, extras.mode)
    return Split(body, extras, model, ignored, reported, is_sealed)


def _refuse_unsupported(body: dict[str, Any]) -> None:
    for name, neutral in NEUTRAL_VALUES.items():
        value = body.pop(name, None)
        if not is_neutral(value, neutral):
            allowed = " or ".join(["absent", *map(json.dumps, neutral)])
            refuse(name, value, f"{allowed}: {UNSUPPORTED_REASONS.get(name, UNSUPPORTED)}")


def _take_unknown(protocol: Protocol, body: dict[str, Any], is_strict: bool) -> tuple[str, ...]:
    known = KNOWN_FIELDS[protocol]
    unknown = tuple(name for name in body if name not in known)
    if unknown and is_strict:
        near = get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "leave it out"
        raise RequestError(f"unknown field {unknown[0]!r} in a {protocol} request; {hint}", param=unknown[0])
    for name in unknown:
        del body[name]
    return unknown


def _reconcile(protocol: Protocol, body: dict[str, Any], mode: Mode) -> Mode:
    """Thinking gives way to a forced tool or a prefill where it is only the default."""
    is_prefill = _is_prefill(protocol, body)
    if not mode.thinking or not (is_prefill or is_forced(body)):
        return mode
    if mode.is_explicit and is_prefill:
        raise RequestError(
            "a final assistant message to continue cannot be combined with thinking; switch thinking off or drop it",
            param="messages",
        )
    return mode if mode.is_explicit else Mode(False, None, False)


def _take_extras(protocol: Protocol, body: dict[str, Any], mode: Mode, vocab_size: int) -> Extras:
    top_k = read_integer(body, "top_k", -1, MAX_UNSIGNED)
    taken = take_format(protocol, body)
    extras = Extras(
        mode=mode,
        num_samples=read_integer(body, "n", 1, MAX_SAMPLES) or 1,
        max_tokens=_take_max_tokens(protocol, body),
        temperature=read_number(body, "temperature", 0, 2),
        top_p=read_number(body, "top_p", 0, 1, above=True),
        top_k=max(top_k or 0, 0),
        min_p=read_number(body, "min_p", 0, 1) or 0.0,
        seed=read_integer(body, "seed", -(2**63), 2**63 - 1),
        min_tokens=read_integer(body, "min_tokens", 0, MAX_UNSIGNED) or 0,
        ignore_eos=read_boolean(body, "ignore_eos") or False,
        stop_in_reasoning=read_boolean(body, "stop_in_reasoning") or False,
        stop_token_ids=read_integers(body, "stop_token_ids", 0, MAX_UNSIGNED),
        rules=read_rules(body, vocab_size),
        wishes=read_wishes(body),
        include_usage=_take_stream_options(protocol, body),
        tools=take_tool_wishes(protocol, body, thinking=mode.thinking),
        answer=taken.grammar,
        is_prefill=_is_prefill(protocol, body),
        response_schema=taken.told_schema,
    )
    own = ("n", "top_k", "min_p", "seed", "min_tokens", "ignore_eos", "stop_token_ids", "stop_in_reasoning")
    for name in (*own, *RULE_FIELDS, *WISH_FIELDS):
        body.pop(name, None)
    _normalise(body)
    if protocol == "chat":
        check_shapes(body)
    return extras


def _check_unused(body: dict[str, Any]) -> None:
    """What clients of Responses send and no reply depends on: tools of the server's own, prompts that are too long."""
    read_integer(body, "max_tool_calls", 1, MAX_UNSIGNED)
    read_choice(body, "truncation", ("auto", "disabled"))


def _normalise(body: dict[str, Any]) -> None:
    """Check what the recipe would refuse without naming it, and write it as the recipe wants it."""
    read_boolean(body, "stream")
    read_boolean(body, "parallel_tool_calls")
    if "stop" in body:
        body["stop"] = _longest_first(read_strings(body, "stop", MAX_STOPS))
    if "stop_sequences" in body:
        body["stop_sequences"] = _longest_first(read_strings(body, "stop_sequences", MAX_STOPS))
    if "top_logprobs" in body:
        body["top_logprobs"] = read_integer(body, "top_logprobs", 0, 20)
    if "logprobs" in body:
        body["logprobs"] = read_boolean(body, "logprobs")


def _longest_first(strings: Sequence[str]) -> list[str]:
    """Of strings that end at the same place the recipe takes the first; it shall be the one that begins first."""
    return sorted(strings, key=len, reverse=True)


def _take_max_tokens(protocol: Protocol, body: dict[str, Any]) -> int | None:
    field = MAX_TOKENS_FIELD[protocol]
    names = [field, "max_completion_tokens"] if protocol == "chat" else [field]
    given = {name: value for name in names if (value := read_integer(body, name, 1, MAX_UNSIGNED)) is not None}
    for name in names:
        body.pop(name, None)
    if len(set(given.values())) > 1:
        raise RequestError(
            f"max_tokens is {given['max_tokens']} and max_completion_tokens is {given['max_completion_tokens']}; "
            "they mean the same, so set one or make them equal",
            param="max_completion_tokens",
        )
    max_tokens = next(iter(given.values()), None)
    if max_tokens is not None:
        body[field] = max_tokens
    return max_tokens


def _take_stream_options(protocol: Protocol, body: dict[str, Any]) -> bool:
    options = read_object(body, "stream_options")
    if options is None or protocol != "chat":
        body.pop("stream_options", None)
        return False
    if not body.get("stream"):
        refuse("stream_options", options, "absent unless stream is true")
    include = read_boolean(
        {"stream_options.include_usage": options.get("include_usage")}, "stream_options.include_usage"
    )
    body["stream_options"] = {"include_usage": bool(include)}
    return bool(include)


def _is_prefill(protocol: Protocol, body: dict[str, Any]) -> bool:
    turns = body.get("messages")
    if protocol != "messages" or not isinstance(turns, list) or not turns or not isinstance(turns[-1], dict):
        return False
    return turns[-1].get("role") == "assistant"
