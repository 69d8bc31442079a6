"""From a request body to what the engine needs: prompt ids, sampling values, and how to read the reply.

One path for `/v1/chat/completions`, `/v1/responses` and `/v1/messages`:

    tokenizer = Tokenizer(folder)
    encoder = PromptEncoder(tokenizer, context_len=8192, settings=read_prompt_settings(folder), served_names=("tiny",))
    prompt = encoder.encode("chat", request_bytes)      # RequestError names field, value and what is allowed
    prompt.token_ids                                    # to the engine
    prompt.sampling                                     # field names of engine.SamplingParams: asdict(prompt.sampling)
    prompt.num_samples                                  # n; sample i is seeded prompt.sampling.seed + i
    ReplyStream(prompt, tokenizer, reply_id=...)        # benthic.text.stream reads the generated ids

What `split.py` takes out of a request and why is written there; the mode of thinking is decided in `thinking.py`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import deepseek_recipe as recipe

from benthic.errors import PromptTooLong, RequestError, UnknownModel
from benthic.text.conversation import Rendered, rebuild, render
from benthic.text.protocol_fields import MAX_TOKENS_FIELD, Protocol
from benthic.text.settings import Dialect, PromptSettings
from benthic.text.split import MAX_UNSIGNED, Extras, Split, split
from benthic.text.tokenizer import Tokenizer

_RECIPE_MODEL = "DeepSeek-V4-Pro"
"""The recipe knows two encodings by model name; every V4 checkpoint of any size has the one of this name."""

_REQUESTS = {
    "chat": recipe.ChatCompletionRequest,
    "responses": recipe.ResponsesRequest,
    "messages": recipe.MessagesRequest,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling of one request, resolved; the names are those of `engine.sampling.SamplingParams`."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    logprobs: int | None = None
    """Alternatives to report for each token; None for no log-probabilities at all."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0


class Constraint(NamedTuple):
    """What the reply ought to conform to. Not enforced here; the prompt asks the model for it.

    `kind` is json, regex, tool_call or tool_call_required; `source` the schema, expression or tool list as text.
    """

    kind: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request, ready to run. `request`, `parsing`, `echo` and `namespace_tools` are for `benthic.text.stream`."""

    protocol: Protocol
    token_ids: list[int]
    model: str
    """The name to report: as asked for, or the served one."""
    thinking: bool
    """Whether the prompt ends inside `<think>`, so that the reply begins with reasoning."""
    is_stream: bool
    include_usage: bool
    """Whether a stream ends with an event of its own for usage (chat only)."""
    num_samples: int
    sampling: Sampling
    constraint: Constraint | None
    ignored: tuple[str, ...]
    """Unknown fields of the body, for a metric."""
    request: recipe.ConversationRequest
    parsing: recipe.ParsingOptions
    echo: recipe.ResponsesEcho | None = None
    namespace_tools: dict[str, tuple[str, str]] | None = None


class PromptEncoder:
    """Turns request bodies into `Prompt`s for one checkpoint. Immutable; safe to share between threads.

    Args:
        tokenizer: the checkpoint's.
        context_len: tokens that prompt and reply may have together.
        settings: the checkpoint's dialect and defaults.
        served_names: names that a request's `model` may have, the first one for requests without; () accepts any.
        is_strict: refuse unknown fields in place of listing them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        context_len: int,
        settings: PromptSettings | None = None,
        served_names: tuple[str, ...] = (),
        is_strict: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._context_len = context_len
        self.settings = settings or PromptSettings()
        self._served_names = served_names
        self._is_strict = is_strict
        self._encoding = recipe.DeepseekV4Encoding().with_tokenizer(tokenizer.recipe)

    def encode(self, protocol: Protocol, raw: bytes | str | Mapping[str, Any]) -> Prompt:
        """Read a request body and write its prompt.

        Args:
            protocol: "chat", "responses" or "messages".
            raw: the body, best as the bytes that arrived.

        Raises:
            RequestError: anything wrong with the request; `param` names the field where one can be named.
            UnknownModel: `model` is no served name.
            PromptTooLong: prompt, or prompt and max_tokens, exceed the context.
        """
        parts = self._split(protocol, raw)
        model = self._resolve_model(parts.model)
        converted = _convert(protocol, parts, self.settings.prompt_dialect)
        token_ids = _encode(self._encoding, converted.conversation)
        return Prompt(
            protocol=protocol,
            token_ids=token_ids,
            model=model,
            thinking=converted.conversation.thinking_mode,
            is_stream=converted.request.stream,
            include_usage=parts.extras.include_usage,
            num_samples=parts.extras.num_samples,
            sampling=self._sampling(protocol, parts.extras, converted.request, len(token_ids)),
            constraint=_constraint(converted.request),
            ignored=parts.ignored,
            request=converted.request,
            parsing=_parsing(converted.request, parts.extras),
            echo=converted.echo,
            namespace_tools=converted.namespace_tools,
        )

    def count(self, protocol: Protocol, raw: bytes | str | Mapping[str, Any]) -> int:
        """Prompt tokens of a body, its model and limits aside (`/v1/messages/count_tokens`)."""
        converted = _convert(protocol, self._split(protocol, raw), self.settings.prompt_dialect)
        return len(_encode(self._encoding, converted.conversation))

    def render(self, protocol: Protocol, raw: bytes | str | Mapping[str, Any]) -> Rendered:
        """The prompt of a body as (text, is_control) segments; their ids are those of `encode`."""
        return render(_convert(protocol, self._split(protocol, raw), self.settings.prompt_dialect).conversation)

    def _split(self, protocol: Protocol, raw: bytes | str | Mapping[str, Any]) -> Split:
        return split(protocol, raw, default_thinking=self.settings.default_thinking, is_strict=self._is_strict)

    def _resolve_model(self, model: str | None) -> str:
        if model is None:
            return self._served_names[0] if self._served_names else _RECIPE_MODEL
        if self._served_names and model not in self._served_names:
            raise UnknownModel(f"model is {model!r}; it must be one of {', '.join(self._served_names)}", param="model")
        return model

    def _sampling(
        self, protocol: Protocol, extras: Extras, request: recipe.ConversationRequest, prompt_len: int
    ) -> Sampling:
        official = request.inference_options
        max_tokens = self._resolve_max_tokens(protocol, extras, request, prompt_len)
        if extras.min_tokens > max_tokens:
            raise RequestError(
                f"min_tokens is {extras.min_tokens}; it must be at most max_tokens, {max_tokens}", param="min_tokens"
            )
        self._tokenizer.check_ids(extras.stop_token_ids, param="stop_token_ids")
        return Sampling(
            max_tokens=max_tokens,
            temperature=_first(extras.temperature, self.settings.default_temperature, official.temperature),
            top_p=_first(extras.top_p, self.settings.default_top_p, official.top_p),
            top_k=extras.top_k,
            min_p=extras.min_p,
            seed=extras.seed,
            logprobs=(official.top_logprobs or 0) if official.logprobs else None,
            stop_token_ids=extras.stop_token_ids,
            ignore_eos=extras.ignore_eos,
            min_tokens=extras.min_tokens,
        )

    def _resolve_max_tokens(
        self, protocol: Protocol, extras: Extras, request: recipe.ConversationRequest, prompt_len: int
    ) -> int:
        room = self._context_len - prompt_len
        if room < 1:
            raise PromptTooLong(
                f"the prompt has {prompt_len} tokens; the context of {self._context_len} must hold it and at least "
                "one token of reply",
                param="input" if protocol == "responses" else "messages",
            )
        if extras.max_tokens is None:
            return int(request.resolve_max_tokens(prompt_len, self._context_len))
        if protocol == "messages":  # the field is mandatory there, so clients send a bound and not a wish
            return min(extras.max_tokens, room)
        if extras.max_tokens > room:
            field = MAX_TOKENS_FIELD[protocol]
            raise PromptTooLong(
                f"{field} is {extras.max_tokens} and the prompt has {prompt_len} tokens; with a context of "
                f"{self._context_len}, {field} must be at most {room}",
                param=field,
            )
        return extras.max_tokens


class _Converted(NamedTuple):
    request: recipe.ConversationRequest
    conversation: recipe.Conversation
    """What to render: the converted conversation, rebuilt."""
    echo: recipe.ResponsesEcho | None = None
    namespace_tools: dict[str, tuple[str, str]] | None = None


def _convert(protocol: Protocol, parts: Split, dialect: Dialect) -> _Converted:
    options = recipe.ConversionOptions(
        default_thinking_mode=parts.extras.mode.thinking,
        thinking_max_tokens_upper_bound=MAX_UNSIGNED,
        non_thinking_max_tokens_upper_bound=MAX_UNSIGNED,
    )
    echo = namespace_tools = None
    try:
        request = _REQUESTS[protocol]({**parts.body, "model": _RECIPE_MODEL})
        if isinstance(request, recipe.ResponsesRequest):
            echo, namespace_tools = request.echo(), request.namespace_tool_map(options)
        converted = request.convert(options)
    except recipe.ConversionError as error:
        raise _refusal(error.body) from error
    except (ValueError, OverflowError, TypeError) as error:
        raise RequestError(str(error), param=_param(str(error))) from error
    conversation = rebuild(
        converted.conversation,
        dialect,
        response_schema=parts.extras.response_schema,
        must_call_tool=parts.extras.must_call_tool,
        is_prefill=parts.extras.is_prefill,
    )
    return _Converted(converted, conversation, echo, namespace_tools)


def _encode(encoding: recipe.DeepseekV4Encoding, conversation: recipe.Conversation) -> list[int]:
    try:
        return list(encoding.encode(conversation))
    except RuntimeError as error:
        raise RequestError(f"the conversation cannot be encoded: {error}") from error


def _constraint(request: recipe.ConversationRequest) -> Constraint | None:
    constraint = request.inference_options.output_constraint
    return Constraint(constraint.kind, constraint.schema) if constraint is not None else None


def _parsing(request: recipe.ConversationRequest, extras: Extras) -> recipe.ParsingOptions:
    parsing = request.parsing_options
    if extras.must_call_tool:
        parsing.starts_in_tool_calls = True
    if extras.response_schema is not None:
        parsing.parse_json_output = True
    return parsing


def _first(*values: float | None) -> float:
    """The first that is set, free of the noise of the recipe's single precision (0.95 is 0.949999988 there)."""
    return round(next(value for value in values if value is not None), 7)


def _refusal(body: str) -> RequestError:
    text = str(json.loads(body)["error"]["message"])
    return RequestError(text, param=_param(text))


def _param(message: str) -> str | None:
    """The field a message of the recipe speaks of: 'tools[0].function.name', `messages`, or Invalid NAME value."""
    found = re.search(r"Invalid '([\w\[\].]+)'|field `(\w+)`|Invalid (\w+) ", message)
    return next((group for group in found.groups() if group), None) if found else None


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
        settings: the checkpoint's dialect.

    Raises:
        RequestError: what the server would refuse.
    """
    body: dict[str, Any] = {"messages": list(messages), "thinking": thinking}
    if tools:
        body["tools"] = list(tools)
    if response_schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "reply", "schema": response_schema}}
    settings = settings or PromptSettings()
    return render(_convert("chat", split("chat", body), settings.prompt_dialect).conversation)
