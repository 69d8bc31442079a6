"""The one door to deepseek-recipe's conversion: a split request becomes a rendered prompt."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import deepseek_recipe as recipe

from benthic.errors import ConfigError
from benthic.text.chat_template import ChatTemplate, as_turns
from benthic.text.conversation import Rendered, rebuild, render
from benthic.text.protocol_fields import Protocol
from benthic.text.refusal import message_of, to_refusal
from benthic.text.settings import Dialect, PromptSettings
from benthic.text.split import MAX_UNSIGNED, Extras, Split, split

RECIPE_MODEL = "DeepSeek-V4-Pro"
"""The recipe knows two encodings by model name; every V4 checkpoint of any size has the one of this name."""

_LEAST: dict[Protocol, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "x"}]},
    "responses": {"input": "x"},
    "messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
}
"""The smallest good body of each protocol."""
_REQUESTS = {
    "chat": recipe.ChatCompletionRequest,
    "responses": recipe.ResponsesRequest,
    "messages": recipe.MessagesRequest,
}


class Converted(NamedTuple):
    """The recipe's request, its prompt, and what only Responses has."""

    request: recipe.ConversationRequest
    rendered: Rendered
    echo: recipe.ResponsesEcho | None = None
    namespace_tools: dict[str, tuple[str, str]] | None = None


def convert(protocol: Protocol, parts: Split, encoding: Dialect | ChatTemplate) -> Converted:
    """Let the recipe judge and convert a body, and render its prompt in a dialect of V4, or by a template.

    Raises:
        RequestError: what the recipe refuses; `param` where it names a field.
    """
    options = recipe.ConversionOptions(
        default_thinking_mode=parts.extras.mode.thinking,
        thinking_max_tokens_upper_bound=MAX_UNSIGNED,
        non_thinking_max_tokens_upper_bound=MAX_UNSIGNED,
    )
    echo = namespace_tools = None
    try:
        request = _REQUESTS[protocol]({**parts.body, "model": RECIPE_MODEL})
        if isinstance(request, recipe.ResponsesRequest):
            echo, namespace_tools = request.echo(), request.namespace_tool_map(options)
        converted = request.convert(options)
    except recipe.ConversionError as error:
        raise to_refusal(protocol, parts.body, message_of(error.body)) from error
    except (ValueError, OverflowError, TypeError) as error:
        message = str(error)
        raise to_refusal(protocol, parts.body, message, _field_at_fault(protocol, parts.body, message)) from error
    return Converted(converted, _render(converted.conversation, parts.extras, encoding), echo, namespace_tools)


def _field_at_fault(protocol: Protocol, body: Mapping[str, Any], message: str) -> str | None:
    """The field that is refused in these words also where it stands alone in a good body."""
    for name, value in body.items():
        try:
            _REQUESTS[protocol]({**_LEAST[protocol], name: value, "model": RECIPE_MODEL})
        except (ValueError, OverflowError, TypeError) as error:
            if str(error) == message:
                return name
    return None


def _render(conversation: recipe.Conversation, extras: Extras, encoding: Dialect | ChatTemplate) -> Rendered:
    if isinstance(encoding, ChatTemplate):
        turns = as_turns(
            conversation,
            effort=extras.mode.effort,
            is_prefill=extras.is_prefill,
            must_call_tool=extras.tools.is_forced,
            has_schema=extras.response_schema is not None,
        )
        return encoding.render(turns, extras.mode.thinking)
    rebuilt = rebuild(
        conversation,
        encoding,
        response_schema=extras.response_schema,
        must_call_tool=extras.tools.begins_call,
        is_prefill=extras.is_prefill,
    )
    return render(rebuilt, encoding)


def render_conversation(
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    thinking: bool = False,
    response_schema: Mapping[str, Any] | None = None,
    settings: PromptSettings | None = None,
) -> Rendered:
    """The prompt of a chat request with these fields, by the server's own path; for training data.

    The conversation ends where the model is to speak; what it then says is `render_reply`.

    Args:
        messages: as in a chat request (system, user, assistant with tool_calls, tool).
        tools: as in a chat request, {"type": "function", "function": {...}}.
        thinking: whether the prompt ends in `<think>`.
        response_schema: JSON schema that the reply shall follow.
        settings: the checkpoint's dialect, one of V4's.

    Raises:
        ConfigError: prompts of the checkpoint are made by a chat template, which needs its tokenizer.
        RequestError: what the server would refuse.
    """
    body: dict[str, Any] = {"messages": list(messages), "thinking": thinking}
    if tools:
        body["tools"] = list(tools)
    if response_schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "reply", "schema": response_schema}}
    settings = settings or PromptSettings()
    if settings.prompt_dialect == "template":
        raise ConfigError("prompt_dialect is 'template'; it must be one of V4's here: use PromptEncoder.render")
    return convert("chat", split("chat", body), settings.prompt_dialect).rendered
