"""Prompts of checkpoints before V4: their own chat template (Jinja), filled in so that no message can forge markup.

A template makes one string, in which a user's literal `<｜User｜>` looks like the control token. So it is filled in
twice: with a mark in place of every message's text, which shows where the template's own words end and a message
begins, and with the texts themselves, which must give the same string. A template that drops, doubles or changes a
message is found by that, and the request refused.

Only what every template of the family can say is written: system, user and assistant texts. Tools, efforts and
response formats are refused with a reason: each version has its own markup for them, and a template that ignores one
would answer as if it had not been asked for. Whether there is thinking is asked of the template: `modes`.

The sandbox keeps a template from Python's objects, not from taking long: take checkpoints from people you trust.
"""

import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import NoReturn

import deepseek_recipe as recipe
import jinja2
import jinja2.sandbox

from benthic.errors import CheckpointError, RequestError
from benthic.text.conversation import Rendered
from benthic.text.tokenizer import BOS, EOS, THINK

Turn = Mapping[str, str]
"""A message: `role` (system, user, assistant) and `content`."""

_FAILURES = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a template may raise when it is filled in: its own refusal, or an operation that its values do not have."""


class ChatTemplate:
    """One checkpoint's template. Immutable; safe to share between threads.

    Args:
        source: the Jinja text, as in `chat_template.jinja` or tokenizer_config.json.
        control_tokens: spellings that mean one token each where the template itself writes them.

    Raises:
        CheckpointError: it is no template, or cannot write a single message.
    """

    def __init__(self, source: str, control_tokens: Collection[str]) -> None:
        self._template = _compile(source)
        spellings = sorted(control_tokens, key=len, reverse=True)
        self._control = re.compile("(" + "|".join(map(re.escape, spellings)) + ")")
        try:
            self.modes = frozenset(self._thinks(thinking) for thinking in (False, True))
        except RequestError as error:
            raise CheckpointError(f"the chat template writes no prompt for one user message: {error}") from error
        """Whether replies can begin with reasoning (True), without it (False), or either way."""

    def render(self, turns: Sequence[Turn], thinking: bool) -> Rendered:
        """The prompt of a conversation that ends where the model is to speak.

        Raises:
            RequestError: the template refuses it, or has no place for a message as it stands.
        """
        marks = _marks([turn["content"] for turn in turns])
        marked = self._fill([{**turn, "content": mark} for turn, mark in zip(turns, marks, strict=True)], thinking)
        for number, (turn, mark) in enumerate(zip(turns, marks, strict=True)):
            if mark and marked.count(mark) != 1:
                _refuse(f"has no place for messages[{number}], of role {turn['role']!r}, where it stands")
        segments = self._segments(marked, {mark: turn["content"] for turn, mark in zip(turns, marks, strict=True)})
        if "".join(text for text, _ in segments) != self._fill(turns, thinking):
            _refuse("would change the text of a message, such as one that contains </think>")
        return Rendered(segments)

    def _fill(self, turns: Sequence[Turn], thinking: bool) -> str:
        try:
            return self._template.render(
                messages=[dict(turn) for turn in turns],
                add_generation_prompt=True,
                bos_token=BOS,
                eos_token=EOS,
                thinking=thinking,
                enable_thinking=thinking,
            )
        except _FAILURES as error:
            _refuse(f"refuses this conversation: {error}")

    def _segments(self, marked: str, texts: Mapping[str, str]) -> tuple[tuple[str, bool], ...]:
        marks = "|".join(re.escape(mark) for mark in texts if mark)
        segments: list[tuple[str, bool]] = []
        for piece in re.split(f"({marks})", marked) if marks else [marked]:
            if piece in texts:
                segments.append((texts[piece], False))
            else:
                segments += [(text, i % 2 == 1) for i, text in enumerate(self._control.split(piece)) if text]
        return tuple(segment for segment in segments if segment[0])

    def _thinks(self, thinking: bool) -> bool:
        prompt = self.render([{"role": "user", "content": "?"}], thinking)
        return prompt.text.rstrip().endswith(THINK)


def _compile(source: str) -> jinja2.Template:
    """Whitespace and extensions are those that transformers gives to chat templates."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise_exception
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise CheckpointError(f"the chat template is no Jinja template: {error}") from error


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _marks(contents: Sequence[str]) -> list[str]:
    """One string for each text that no text and no template contains; an empty text stays empty."""
    while any((secret := secrets.token_hex(8)) in content for content in contents):
        pass
    return [f"{secret}.{number:x}." if content else "" for number, content in enumerate(contents)]


def _refuse(problem: str) -> NoReturn:
    raise RequestError(f"the chat template of this checkpoint {problem}", param="messages")


def as_turns(
    conversation: recipe.Conversation, *, effort: str | None, is_prefill: bool, must_call_tool: bool, has_schema: bool
) -> list[Turn]:
    """The turns of a converted conversation, if it has nothing else.

    Raises:
        RequestError: it has; `param` names the field.
    """
    for name, value in (("tools", conversation.tools), ("tool_choice", must_call_tool), ("reasoning_effort", effort)):
        if value:
            _refuse_field(name)
    if has_schema or conversation.response_format != "text":
        _refuse_field("response_format")
    for message in conversation.messages:
        if message.role not in ("system", "user", "assistant") or message.tool_calls:
            what = "tool calls" if message.tool_calls else f"messages of role {message.role!r}"
            raise RequestError(f"the conversation has {what}; {_SUPPORTED}", param="messages")
    if is_prefill or conversation.messages[-1].role != "user" or any(turn.prefix for turn in conversation.messages):
        raise RequestError(
            f"the last message is of role {conversation.messages[-1].role!r}; it must be the user's: with this "
            "checkpoint's chat template no reply can be continued",
            param="messages",
        )
    return [{"role": message.role, "content": message.content} for message in conversation.messages]


_SUPPORTED = "for a checkpoint before DeepSeek-V4 only system, user and assistant texts can be written"


def _refuse_field(name: str) -> NoReturn:
    raise RequestError(f"{name} is given; it must be absent: {_SUPPORTED}", param=name)
