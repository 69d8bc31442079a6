"""One generated sequence, read as it grows: ids in, wire payloads of the request's protocol out.

deepseek-recipe's `StreamProcessor` does the parsing. This file keeps away from it what it cannot take, and adds what it
does not do (each found by trying it):

- It drops an unfinished character at the end: we keep ids until their character is whole; what never becomes one goes
  in as text (U+FFFD), without log-probabilities.
- It shows EOS and turn markers as text: we give it an empty text that counts one token in their place.
- It raises on a push after a stop string: we look at `finished` after every id, which is why ids go in one by one.
- It swallows what follows the tool calls until the end of time: we finish the reply where their block closes.
- It turns log-probabilities of -inf into null, and shows more alternatives than asked for: we clamp and cut.
- It passes broken tool arguments and calls of unknown functions on without a word: we look at them at the end
  (`tool_call_errors`).
"""

import codecs
import json
import math
import re
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, NoReturn

import deepseek_recipe as recipe

from benthic.text.fields import describe_json_error
from benthic.text.json_prefix import JsonPrefix
from benthic.text.markup import MarkupReader, Piece
from benthic.text.prompt import Prompt
from benthic.text.reasoning_count import ReasoningCount
from benthic.text.reasoning_stops import ReasoningStops
from benthic.text.responses_reply import ResponsesEvents
from benthic.text.tokenizer import DSML, END_THINK, Tokenizer
from benthic.text.wire import Payload, ToolCallWatch, add_drafts, correct_finish, correct_usage, is_last, says_nothing

FinishReason = Literal["stop", "length"]
"""Why the engine ended a sequence: EOS or a stop token, or the limit of tokens."""

TokenLogprob = tuple[float, Sequence[tuple[int, float]]]
"""Log-probability of the chosen token, and (id, log-probability) of the alternatives, best first."""

_Entry = tuple[int, TokenLogprob | None]
_Group = list[_Entry]

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say (OpenAI's convention)."""

_MARKER_STARTS = re.compile(r"(?<=[<｜])")
_FINISH = {"stop": recipe.InferenceFinishReason.Stop, "length": recipe.InferenceFinishReason.Length}
_GENERATORS = {
    "chat": recipe.ChatCompletionRequest.chunk_generator,
    "messages": recipe.MessagesRequest.chunk_generator,
}
_RESPONSES = {
    "chat": recipe.ChatCompletionResponse,
    "responses": recipe.ResponsesResponse,
    "messages": recipe.MessagesResponse,
}


class ToolCallError(NamedTuple):
    """A tool call that no client could carry out: arguments that are no JSON object, or a function not offered."""

    name: str
    arguments: str
    problem: str


class ReplyParser:
    """Reads one sequence. `start`, then `push` as ids arrive, then `finish`; `close` in any case.

    Args:
        prompt: from `PromptEncoder.encode`.
        tokenizer: the one that made the prompt.
        reply_id: the id to report, e.g. "chatcmpl-...".
        sample: which of the request's n samples this is.
    """

    def __init__(self, prompt: Prompt, tokenizer: Tokenizer, *, reply_id: str, sample: int = 0) -> None:
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._reply_id = reply_id
        self._sample = sample
        self._processor = recipe.StreamProcessor(_generator(prompt, reply_id), prompt.parsing, tokenizer.recipe)
        self._shown = _shown_control_ids(tokenizer)
        self._undecided: _Group = []
        starts_in_calls = prompt.parsing.starts_in_tool_calls
        self._markup: MarkupReader[_Entry] = MarkupReader(
            has_tools=prompt.parsing.parse_tool_calls or starts_in_calls, mode="calls" if starts_in_calls else "text"
        )
        self._marker_ids = _ids(tokenizer, (DSML,))
        self._reasoning: ReasoningStops[_Entry] | None = None
        if prompt.thinking and prompt.stop_in_reasoning and prompt.parsing.stop_sequences:
            self._reasoning = ReasoningStops(prompt.parsing.stop_sequences)
        self._calls = ToolCallWatch()
        self._responses = ResponsesEvents(prompt.reported, is_sealed=prompt.is_sealed, problem=self._call_problem)
        self._count = ReasoningCount(prompt.thinking)
        self._prefixes: dict[int, JsonPrefix] = {}
        """Of the arguments in each block of Messages."""
        self._response: Any = None
        self._held: list[Payload] = []
        self._cached_len = 0
        self.created = int(time.time())
        """Unix time to report."""
        self._is_closed = False
        self.is_finished = False
        """Whether the last event is out; ids pushed later are ignored."""
        self.num_tokens = 0
        """Ids read, those that show nothing included."""
        self.usage: dict[str, Any] = {}
        """Usage as the protocol counts it, once finished."""

    @property
    def tool_call_errors(self) -> tuple[ToolCallError, ...]:
        """Calls so far of functions that are not offered or with arguments that are no JSON object; final once the
        reply is finished."""
        problems = ((name, arguments, self._call_problem(name, arguments)) for name, arguments in self._calls.calls)
        errors = [ToolCallError(name, arguments, problem) for name, arguments, problem in problems if problem]
        dropped = [ToolCallError(name, "", "this request offers no tools") for name in self._markup.refused]
        return (*errors, *dropped)

    def start(self, cached_len: int = 0) -> list[Payload]:
        """Open the reply; `cached_len` prompt tokens were not computed anew."""
        prompt_len = len(self._prompt.token_ids)
        self._cached_len = cached_len
        self._response = _RESPONSES[self._prompt.protocol](
            self._reply_id, self._prompt.model, self.created, prompt_len, cached_len
        )
        usage = recipe.PromptUsage(prompt_tokens=prompt_len, prompt_cache_hit_tokens=cached_len)
        return self._process(recipe.InferenceChunk.ready(prompt_usage=usage))

    def push(self, ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None = None) -> list[Payload]:
        """Read ids; `logprobs` has one entry an id where the request asked for them."""
        payloads: list[Payload] = []
        for position, token_id in enumerate(ids):
            if self.is_finished:
                break
            payloads += self._push_one(token_id, logprobs[position] if logprobs else None)
        return payloads

    def finish(
        self, reason: FinishReason, cached_len: int | None = None, drafts: tuple[int, int] = (0, 0)
    ) -> list[Payload]:
        """End the reply where the engine ended it; of one that has ended by itself, what was held.

        `cached_len`: what the engine now says of the prompt, if it was not known at the start.
        `drafts`: tokens that were guessed ahead, and how many of them were right.
        """
        self._cached_len = self._cached_len if cached_len is None else cached_len
        payloads = self._end(reason)
        payloads, self._held = payloads + self._held, []
        for payload in payloads:
            correct_usage(self._prompt.protocol, payload.data, self._cached_len, self._reasoning_len)
        if self._prompt.protocol == "chat":
            correct_usage("chat", {"usage": self.usage}, self._cached_len)
            add_drafts(self.usage, *drafts)
        return payloads

    def body(self) -> dict[str, Any]:
        """The whole reply as the protocol's object, as an answer without stream has it."""
        assert self.is_finished, "a reply has a body once it is finished"
        body: dict[str, Any] = json.loads(self._response.to_json())
        correct_finish(self._prompt.protocol, body, self.tool_call_errors)
        correct_usage(self._prompt.protocol, body, self._cached_len, self._reasoning_len)
        if self._prompt.protocol == "responses":
            self._responses.correct_response(body)
        return body

    def failed(self, message: str, code: str, kind: str) -> Payload:
        """What ends a Responses reply that broke off."""
        data = self._responses.failed(json.loads(self._response.to_json()), message, code, kind)
        return Payload(data["type"], data)

    def close(self) -> None:
        """Free the parser's state; may be called at any time and more than once."""
        if not self._is_closed:
            self._processor.close()
        self._is_closed = self.is_finished = True

    @property
    def _reasoning_len(self) -> int | None:
        return self._count.num_tokens if self._prompt.thinking else None

    def _call_problem(self, name: str, arguments: str) -> str | None:
        return self._name_problem(name) or _problem(arguments)

    def _name_problem(self, name: str) -> str | None:
        offered = self._prompt.tool_names
        if name in offered:
            return None
        return f"{name!r} is no function that this request lets the model call: {', '.join(sorted(offered))}"

    def _push_one(self, token_id: int, logprob: TokenLogprob | None) -> list[Payload]:
        self.num_tokens += 1
        if not self._is_shown(token_id):
            return self._flush_undecided() + self._process(recipe.InferenceChunk.text("", 1))
        if token_id in self._marker_ids:
            return self._flush_undecided() + self._push_piece(Piece([(token_id, logprob)], DSML, is_marker=True))
        if token_id in self._shown:
            before = self._flush_text()
            self._count.end(begins_calls=False)
            return before + self._push_group([(token_id, logprob)])
        return self._push_text(token_id, logprob)

    def _push_text(self, token_id: int, logprob: TokenLogprob | None) -> list[Payload]:
        self._undecided.append((token_id, logprob))
        data = self._undecided_bytes()
        text, num_decided = codecs.utf_8_decode(data, "replace", False)
        if num_decided < len(data):
            return []
        if text.endswith("\ufffd"):  # as tokens the processor would hold it, and lose it at the end
            return self._flush_undecided()
        group, self._undecided = self._undecided, []
        return self._push_piece(Piece(group, text))

    def _push_piece(self, piece: Piece[_Entry]) -> list[Payload]:
        payloads = [payload for certain in self._markup.push(piece) for payload in self._read(certain)]
        return payloads + (self._end("stop") if self._markup.is_over else [])

    def _read(self, piece: Piece[_Entry]) -> list[Payload]:
        """What the recipe makes of a piece, once stop strings of the reasoning have been looked for."""
        over = self._end_reasoning() if piece.begins_calls else []
        if piece.begins_calls:
            self._count.end(begins_calls=True)
        self._count.take(piece.text, len(piece.group) if piece.is_whole else 0)
        if not piece.is_whole:  # in order behind what waits; no stop string begins or ends in it
            waiting = [] if self._reasoning is None else self._reasoning.flush()
            before = [payload for group in waiting for payload in self._push_group(group)]
            return over + before + self._push_plain(piece.text, len(piece.group))
        if self._reasoning is not None:
            return over + self._push_reasoning(self._reasoning, piece.group, piece.text)
        return over + self._push_group(piece.group)

    def _push_plain(self, text: str, num_tokens: int) -> list[Payload]:
        """Text of which nothing is markup: cut where the recipe would begin to read a control token in it."""
        first, *others = _MARKER_STARTS.split(text)
        payloads = self._process(recipe.InferenceChunk.text(first, num_tokens))
        return payloads + [payload for other in others for payload in self._process(recipe.InferenceChunk.text(other))]

    def _push_group(self, group: _Group) -> list[Payload]:
        return self._process(recipe.InferenceChunk.tokens([token_id for token_id, _ in group], self._entries(group)))

    def _push_reasoning(self, reasoning: ReasoningStops[_Entry], group: _Group, text: str) -> list[Payload]:
        released = reasoning.push(group, text)
        payloads = [payload for own in released.groups for payload in self._push_group(own)]
        if not released.is_stopped:
            return payloads
        self._reasoning = None
        return [
            *payloads,
            *self._push_plain(released.rest, released.num_rest),
            *self._process(recipe.InferenceChunk.finish(_FINISH["stop"])),
        ]

    def _end_reasoning(self) -> list[Payload]:
        """From here on the recipe looks for stop strings."""
        reasoning, self._reasoning = self._reasoning, None
        groups = [] if reasoning is None else reasoning.flush()
        return [payload for group in groups for payload in self._push_group(group)]

    def _flush_text(self) -> list[Payload]:
        """Nothing waits any more: the reasoning, the calls or the reply end here."""
        payloads = self._flush_undecided()
        payloads += [payload for piece in self._markup.flush() for payload in self._read(piece)]
        return payloads + self._end_reasoning()

    def _end(self, reason: FinishReason) -> list[Payload]:
        if self.is_finished:
            return []
        return self._flush_text() + self._process(recipe.InferenceChunk.finish(_FINISH[reason]))

    def _entries(self, group: _Group) -> list[TokenLogprob] | None:
        asked = self._prompt.sampling.logprobs
        entries = [logprob for _, logprob in group if logprob is not None]
        if asked is None or len(entries) < len(group):
            return None
        return [_finite(entry, asked) for entry in entries]

    def _undecided_bytes(self) -> bytes:
        return b"".join(self._tokenizer.token_bytes(token_id) for token_id, _ in self._undecided)

    def _is_shown(self, token_id: int) -> bool:
        if token_id in self._prompt.sampling.stop_token_ids:
            return False
        if token_id in self._tokenizer.control_ids:
            return token_id in self._shown
        return self._tokenizer.token(token_id) is not None

    def _flush_undecided(self) -> list[Payload]:
        if not self._undecided:
            return []
        text = self._undecided_bytes().decode("utf-8", errors="replace")
        group, self._undecided = self._undecided, []
        return self._push_piece(Piece(group, text, is_whole=False))

    def _process(self, chunk: recipe.InferenceChunk) -> list[Payload]:
        if self.is_finished:
            return []
        payloads = [self._take(event) for event in self._processor.push(chunk)]
        self.is_finished = self._processor.finished
        payloads = [payload for payload in payloads if not says_nothing(self._prompt.protocol, payload.data)]
        if self._prompt.protocol == "responses":
            for payload in payloads:
                self._responses.correct(payload.data)
        return self._without_usage(payloads) if self.is_finished else payloads

    def _without_usage(self, payloads: list[Payload]) -> list[Payload]:
        """What may be said before the engine has said how much of the prompt was cached; holds the rest."""
        if self._prompt.protocol == "chat":
            return payloads
        first = next((i for i, payload in enumerate(payloads) if is_last(self._prompt.protocol, payload.data)), None)
        self._held += payloads[first:] if first is not None else []
        return payloads[:first]

    def _take(self, event: Any) -> Payload:
        name = self._response.sse_event_name(event)
        data: dict[str, Any] = json.loads(event.to_json())
        self._response.accumulate(event)
        self._calls.watch(self._prompt.protocol, data)
        if is_last(self._prompt.protocol, data):  # reading arguments at every event would cost their square
            correct_finish(self._prompt.protocol, data, self.tool_call_errors)
        self._keep_parsable(data)
        if self._prompt.protocol == "chat":
            self.usage = data.pop("usage", None) or self.usage
            data["created"] = self.created
            data["choices"][0]["index"] = self._sample
        return Payload(name, data)

    def _keep_parsable(self, data: dict[str, Any]) -> None:
        """Anthropic's clients parse arguments at every delta and fail on what is no beginning of JSON; what they do not
        get of a broken call is in `tool_call_errors`."""
        delta = data.get("delta")
        if self._prompt.protocol == "messages" and delta and delta.get("type") == "input_json_delta":
            prefix = self._prefixes.setdefault(data["index"], JsonPrefix())
            delta["partial_json"] = prefix.take(delta["partial_json"])


def _generator(prompt: Prompt, reply_id: str) -> Any:
    if prompt.protocol != "responses":
        return _GENERATORS[prompt.protocol](prompt.request, reply_id, prompt.model)
    generator = recipe.ResponsesRequest.chunk_generator(prompt.request, reply_id, prompt.model)
    if prompt.namespace_tools:
        generator = generator.with_namespace_tool_map(prompt.namespace_tools)
    return generator.with_echo(prompt.echo) if prompt.echo is not None else generator


def _shown_control_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Control tokens that the processor must see; all others stand for nothing that a reply should show. It would show
    a `<think>` that does not stand in the prompt."""
    return _ids(tokenizer, (END_THINK, DSML))


def _ids(tokenizer: Tokenizer, tokens: Sequence[str]) -> frozenset[int]:
    """Of those that the checkpoint has: thinking came with R1, tool markup of this kind with V3.2."""
    return frozenset(tokenizer.token_id(token) for token in tokens if token in tokenizer.control_tokens)


def _finite(logprob: TokenLogprob, num_alternatives: int) -> TokenLogprob:
    chosen, alternatives = logprob
    return _clamp(chosen), [(token_id, _clamp(value)) for token_id, value in list(alternatives)[:num_alternatives]]


def _clamp(value: float) -> float:
    return value if math.isfinite(value) and value > LOWEST_LOGPROB else LOWEST_LOGPROB


def _problem(arguments: str) -> str | None:
    try:
        value = json.loads(arguments, parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "not JSON that everybody reads: a lone surrogate"
    except (ValueError, RecursionError) as error:
        return f"not JSON: {describe_json_error(error)}"
    return None if isinstance(value, dict) else f"{type(value).__name__} in place of an object"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
