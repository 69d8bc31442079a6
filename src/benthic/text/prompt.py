"""From a request body to what the engine needs: prompt ids, sampling values, and how to read the reply.

One path for `/v1/chat/completions`, `/v1/responses` and `/v1/messages`:

    tokenizer = Tokenizer(folder)
    encoder = PromptEncoder(tokenizer, context_len=8192, settings=read_prompt_settings(folder), served_names=("tiny",))
    prompt = encoder.encode("chat", request_bytes)      # RequestError names field, value and what is allowed
    prompt.token_ids                                    # to the engine
    SamplingParams(**asdict(prompt.sampling), n=prompt.num_samples)
    ReplyStream(prompt, tokenizer, reply_id=...)        # benthic.text.stream reads the generated ids

What `split.py` takes out of a request and why is written there; the mode of thinking is decided in `thinking.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import deepseek_recipe as recipe

from benthic.errors import PromptTooLong, RequestError, UnknownModel
from benthic.text.chat_template import ChatTemplate
from benthic.text.conversation import Rendered
from benthic.text.convert import RECIPE_MODEL, Converted, convert
from benthic.text.grammar import GrammarSpec
from benthic.text.protocol_fields import MAX_TOKENS_FIELD, Protocol
from benthic.text.reply_grammar import reply_grammar
from benthic.text.sampling_fields import Wishes, check_min_tokens
from benthic.text.settings import Dialect, PromptSettings
from benthic.text.split import Extras, Split, split
from benthic.text.tokenizer import END_THINK, REQUIRED_TOKENS, Tokenizer


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
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    prompt_logprobs: int | None = None
    reasoning_end_id: int | None = None
    thinking_budget: int | None = None
    """Reasoning tokens at most; only in a reply that begins with reasoning."""
    return_routes: bool = False
    return_picks: bool = False


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
    wishes: Wishes
    grammar: GrammarSpec | None
    """What the reply must conform to."""
    ignored: tuple[str, ...]
    """Unknown fields of the body, for a metric."""
    request: recipe.ConversationRequest
    parsing: recipe.ParsingOptions
    stop_in_reasoning: bool = False
    """Whether stop strings also end the reasoning."""
    tool_names: frozenset[str] = frozenset()
    """Functions that the reply may call: those offered, or the one that tool_choice names."""
    echo: recipe.ResponsesEcho | None = None
    namespace_tools: dict[str, tuple[str, str]] | None = None
    reported: Mapping[str, Any] = field(default_factory=dict)
    """What a Responses object repeats of its request."""
    is_sealed: bool = False
    """Whether Responses reasoning comes also in a form to be sent back."""


_PROMPT_FIELD: dict[Protocol, str] = {"chat": "messages", "responses": "input", "messages": "messages"}


class PromptEncoder:
    """Turns request bodies into `Prompt`s for one checkpoint. Immutable; safe to share between threads.

    Args:
        tokenizer: the checkpoint's.
        context_len: tokens that prompt and reply may have together.
        settings: the checkpoint's dialect and defaults.
        served_names: names that a request's `model` may have, the first one for requests without; () accepts any.
        is_strict: refuse unknown fields in place of listing them.

    Raises:
        CheckpointError: the tokenizer lacks control tokens of the dialect, or the chat template is none.
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
        self._template: ChatTemplate | None = None
        if self.settings.prompt_dialect != "template":
            tokenizer.require(REQUIRED_TOKENS)
        elif self.settings.chat_template:
            self._template = ChatTemplate(self.settings.chat_template, tokenizer.control_tokens)

    @property
    def has_chat(self) -> bool:
        """Whether conversations can be written: the family has an encoding, or the checkpoint a chat template."""
        return self._template is not None or self.settings.prompt_dialect != "template"

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
        converted = convert(protocol, parts, self._encoding)
        self._check_size(protocol, converted.rendered)
        token_ids = converted.rendered.encode(self._tokenizer)
        sampling = self._sampling(protocol, parts.extras, converted.request, len(token_ids))
        return Prompt(
            protocol=protocol,
            token_ids=token_ids,
            model=model,
            thinking=parts.extras.mode.thinking,
            is_stream=converted.request.stream,
            include_usage=parts.extras.include_usage,
            num_samples=parts.extras.num_samples,
            sampling=sampling,
            wishes=parts.extras.wishes,
            grammar=self._grammar(converted, parts),
            ignored=parts.ignored,
            request=converted.request,
            parsing=_parsing(converted.request, parts.extras),
            stop_in_reasoning=parts.extras.stop_in_reasoning,
            tool_names=_tool_names(converted),
            echo=converted.echo,
            namespace_tools=converted.namespace_tools,
            reported=_reported(parts, sampling),
            is_sealed=parts.is_sealed,
        )

    def count(self, protocol: Protocol, raw: bytes | str | Mapping[str, Any]) -> int:
        """Prompt tokens of a body, its model and limits aside (`/v1/messages/count_tokens`)."""
        return len(self.render(protocol, raw).encode(self._tokenizer))

    def render(self, protocol: Protocol, raw: bytes | str | Mapping[str, Any]) -> Rendered:
        """The prompt of a body as (text, is_control) segments; their ids are those of `encode`."""
        return convert(protocol, self._split(protocol, raw), self._encoding).rendered

    def _check_size(self, protocol: Protocol, rendered: Rendered) -> None:
        """Refuses before it is tokenised, which takes seconds and gigabytes, what cannot fit."""
        plain = "".join(text for text, is_control in rendered.segments if not is_control)
        least = self._tokenizer.least_tokens(plain)
        if least >= self._context_len:
            raise PromptTooLong(
                f"the prompt has at least {least} tokens; the context of {self._context_len} must hold it and at least "
                "one token of reply",
                param=_PROMPT_FIELD[protocol],
            )

    def _grammar(self, converted: Converted, parts: Split) -> GrammarSpec | None:
        conversation, extras = converted.request.conversation, parts.extras
        last = conversation.messages[-1] if conversation.messages else None
        is_begun = extras.is_prefill or getattr(last, "prefix", False)
        return reply_grammar(
            conversation,
            answer=extras.answer,
            given_tools=parts.body.get("tools"),
            strict_tools=extras.tools.strict,
            is_forced=extras.tools.is_forced,
            is_parallel=extras.tools.is_parallel,
            think_end_id=self._tokenizer.token_id(END_THINK) if extras.mode.thinking else None,
            begun=str(last.content) if last is not None and is_begun else "",
        )

    def _split(self, protocol: Protocol, raw: bytes | str | Mapping[str, Any]) -> Split:
        modes = self._template.modes if self._template is not None else frozenset((False, True))
        default = self.settings.default_thinking
        parts = split(
            protocol,
            raw,
            vocab_size=self._tokenizer.vocab_size,
            default_thinking=default if default in modes else not default,
            is_strict=self._is_strict,
        )
        thinking = parts.extras.mode.thinking
        if thinking not in modes:
            way = "begins every reply with reasoning" if True in modes else "has no thinking"
            raise RequestError(
                f"thinking is {'on' if thinking else 'off'}; it must be {'off' if thinking else 'on'} or not be asked "
                f"for: the chat template of this checkpoint {way}",
                param="thinking",
            )
        return parts

    @property
    def _encoding(self) -> Dialect | ChatTemplate:
        if self.has_chat:
            return self._template or self.settings.prompt_dialect
        raise RequestError(
            "this checkpoint has no chat template, so chat is not possible; completions of plain text and of token ids "
            "are (a template belongs into chat_template.jinja or tokenizer_config.json)"
        )

    def _resolve_model(self, model: str | None) -> str:
        if model is None:
            return self._served_names[0] if self._served_names else RECIPE_MODEL
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
        ending = {*extras.stop_token_ids, *(() if extras.ignore_eos else (self._tokenizer.eos_token_id,))}
        check_min_tokens(extras.min_tokens, ending, self._tokenizer.vocab_size)
        budget = extras.mode.budget if extras.mode.thinking else None
        return Sampling(
            max_tokens=max_tokens,
            temperature=_first(extras.temperature, self.settings.default_temperature, _exact(official.temperature)),
            top_p=_first(extras.top_p, self.settings.default_top_p, _exact(official.top_p)),
            top_k=extras.top_k,
            min_p=extras.min_p,
            seed=extras.seed,
            logprobs=(official.top_logprobs or 0) if official.logprobs else None,
            stop_token_ids=extras.stop_token_ids,
            ignore_eos=extras.ignore_eos,
            min_tokens=extras.min_tokens,
            frequency_penalty=extras.rules.frequency_penalty,
            presence_penalty=extras.rules.presence_penalty,
            repetition_penalty=extras.rules.repetition_penalty,
            logit_bias=extras.rules.logit_bias,
            prompt_logprobs=extras.wishes.prompt_logprobs,
            reasoning_end_id=None if budget is None else self._tokenizer.token_id(END_THINK),
            thinking_budget=budget,
            return_routes=extras.wishes.return_routed_experts,
            return_picks=extras.wishes.return_picks,
        )

    def _resolve_max_tokens(
        self, protocol: Protocol, extras: Extras, request: recipe.ConversationRequest, prompt_len: int
    ) -> int:
        room = self._context_len - prompt_len
        if room < 1:
            raise PromptTooLong(
                f"the prompt has {prompt_len} tokens; the context of {self._context_len} must hold it and at least "
                "one token of reply",
                param=_PROMPT_FIELD[protocol],
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


def _reported(parts: Split, sampling: Sampling) -> Mapping[str, Any]:
    """The settings with the values that were used, which a checkpoint's defaults may have set."""
    if not parts.reported:
        return {}
    names = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
    return {**parts.reported, **{name: getattr(sampling, name) for name in names}}


def _tool_names(converted: Converted) -> frozenset[str]:
    """As replies spell them: a function in a namespace has its bare name there."""
    offered = {tool.name for tool in converted.request.conversation.tools or ()}
    return frozenset(offered | {name for _, name in (converted.namespace_tools or {}).values()})


def _parsing(request: recipe.ConversationRequest, extras: Extras) -> recipe.ParsingOptions:
    parsing = request.parsing_options
    if extras.tools.begins_call:
        parsing.starts_in_tool_calls = True
    if extras.response_schema is not None and not extras.is_prefill:  # the rest of a begun JSON text is none
        parsing.parse_json_output = True
    return parsing


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def _exact(value: float | None) -> float | None:
    """A value of the recipe free of the noise of its single precision (0.95 is 0.949999988 there)."""
    return None if value is None else round(value, 7)
