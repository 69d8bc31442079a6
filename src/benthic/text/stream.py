"""From generated ids to what a client reads: reasoning, content, tool calls, finish reason, usage.

`ReplyStream` carries one request, all its n samples, through the wire form of its protocol, streamed or not:

    stream = ReplyStream(prompt, tokenizer, reply_id="chatcmpl-1")
    events = stream.start()
    events = stream.push(sample, ids, logprobs)     # as ids arrive; then look at stream.is_finished(sample)
    events = stream.finish(sample, "stop", cached_len)  # the engine's reason, "stop" or "length"; so many prompt
                                                    # tokens came from the cache
    events = stream.end()                           # once all samples are finished: usage event, [DONE]
    events = stream.fail("message")                 # in place of the rest, when something breaks mid-stream
    body = stream.body()                            # the whole reply as one object, the answer without stream
    stream.close()                                  # in `finally`; any number of times

`event.wire` is the text to send; without stream, drop the events. Where `is_finished(sample)` turns true before the
engine has stopped (a stop string, the end of the tool calls), cancel the sequence; ids pushed later are ignored, and
`finish` then says what waited for `cached_len`. EOS may be among the ids: it is counted and not shown.

`read_reply` reads a complete list of ids (evaluation, RL). Laws, each tested: a stream says what the plain reply says,
for every way of cutting the ids; no character is cut; a call of a function that is not offered, or with arguments that
are no JSON object, never ends in "tool_calls".

Policies and limits of the format: a reply that never closes its thinking is all reasoning; a tool call ends the
thinking that it stands in; stop strings sleep while the model thinks and inside tool calls; the end of the tool calls
ends the reply. A value of a tool call ends at the first `</` + DSML token, because the format has no escape. Control
tokens are markup and never shown: a `<think>` or a stray, unknown or unfinished tag is dropped and the text around it
stays; without tools a whole call is. The same characters spelled by ordinary tokens are text and always shown.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from benthic.text.prompt import Prompt
from benthic.text.reply import FinishReason, ReplyParser, TokenLogprob, ToolCallError
from benthic.text.tokenizer import Tokenizer
from benthic.text.wire import Event, Payload, to_event


class ReplyStream:
    """All samples of one request.

    Args:
        prompt: from `PromptEncoder.encode`.
        tokenizer: the one that made the prompt.
        reply_id: the id to report.
    """

    def __init__(self, prompt: Prompt, tokenizer: Tokenizer, *, reply_id: str) -> None:
        self._prompt = prompt
        self._reply_id = reply_id
        self._parsers = [
            ReplyParser(prompt, tokenizer, reply_id=reply_id, sample=sample) for sample in range(prompt.num_samples)
        ]

    def start(self, cached_len: int = 0) -> list[Event]:
        """Open every sample."""
        return self._events([payload for parser in self._parsers for payload in parser.start(cached_len)])

    def push(self, sample: int, ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None = None) -> list[Event]:
        """Read ids of one sample; `logprobs` has one (logprob, alternatives) an id where they were asked for."""
        return self._events(self._parsers[sample].push(ids, logprobs))

    def finish(
        self, sample: int, reason: FinishReason, cached_len: int | None = None, drafts: tuple[int, int] = (0, 0)
    ) -> list[Event]:
        """End one sample as the engine did; `cached_len` prompt tokens were not computed (None: as at the start).

        `drafts`: tokens that were guessed ahead, and how many of them were right; chat usage tells them.
        """
        return self._events(self._parsers[sample].finish(reason, cached_len, drafts))

    def is_finished(self, sample: int) -> bool:
        """Whether nothing more will be said about a sample."""
        return self._parsers[sample].is_finished

    def tool_call_errors(self, sample: int) -> tuple[ToolCallError, ...]:
        """Tool calls of functions that are not offered, or whose arguments are no JSON object."""
        return self._parsers[sample].tool_call_errors

    def end(self) -> list[Event]:
        """What closes a stream: the usage event if it was asked for, and `[DONE]` (chat only)."""
        if self._prompt.protocol != "chat":
            return []
        usage = {"choices": [], "usage": self.usage()}
        head = self.chat_head() | usage
        return ([to_event(Payload(None, head))] if self._prompt.include_usage else []) + [Event(None, "[DONE]")]

    def fail(self, message: str, *, error_type: str = "server_error", code: str | None = None) -> list[Event]:
        """What a client gets in place of the rest of a stream; it never sees a finish reason then."""
        self.close()
        if self._prompt.protocol == "messages":
            inner = {"type": error_type.replace("server_error", "api_error"), "message": message, "code": code}
            return [to_event(Payload("error", {"type": "error", "error": inner}))]
        if self._prompt.protocol == "responses":
            kinds = {"rate_limit_error": "rate_limit_exceeded"}  # what the protocol's clients know; else server_error
            payload = self._parsers[0].failed(message, kinds.get(error_type, "server_error"), code or error_type)
            return [to_event(payload)]
        error = {"message": message, "type": error_type, "param": None, "code": code}
        return [to_event(Payload(None, {"error": error}))]

    def usage(self) -> dict[str, Any]:
        """Chat usage over all finished samples: the prompt counted once, completions summed."""
        return sum_usage([parser.usage for parser in self._parsers])

    def body(self) -> dict[str, Any]:
        """The whole reply, once all samples are finished."""
        bodies = [parser.body() for parser in self._parsers]
        if self._prompt.protocol != "chat":
            return bodies[0]
        choices = [{**body["choices"][0], "index": sample} for sample, body in enumerate(bodies)]
        return {**bodies[0], "choices": choices, "usage": self.usage()}

    def close(self) -> None:
        """Free everything; may be called at any time and more than once."""
        for parser in self._parsers:
            parser.close()

    def _events(self, payloads: list[Payload]) -> list[Event]:
        if self._prompt.include_usage:
            payloads = [Payload(name, {**data, "usage": None}) for name, data in payloads]
        return [to_event(payload) for payload in payloads]

    def chat_head(self) -> dict[str, Any]:
        """What every chunk of a chat stream begins with."""
        return {
            "id": self._reply_id,
            "object": "chat.completion.chunk",
            "created": self._parsers[0].created,
            "model": self._prompt.model,
        }


class Reply(NamedTuple):
    """A reply read whole."""

    reasoning: str
    content: str
    tool_calls: tuple[tuple[str, str], ...]
    """(name, arguments as JSON text) of each call."""
    finish_reason: str
    tool_call_errors: tuple[ToolCallError, ...]


def read_reply(prompt: Prompt, tokenizer: Tokenizer, ids: Sequence[int], reason: FinishReason = "stop") -> Reply:
    """Read all ids of one sample of a chat prompt.

    Args:
        prompt: a prompt of protocol "chat".
        tokenizer: the one that made it.
        ids: generated ids, EOS included or not.
        reason: why the engine ended.
    """
    assert prompt.protocol == "chat", "a reply is read whole in the chat protocol"
    parser = ReplyParser(prompt, tokenizer, reply_id="")
    try:
        parser.start()
        parser.push(ids)
        parser.finish(reason)
        choice = parser.body()["choices"][0]
        message = choice["message"]
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        return Reply(
            reasoning=message.get("reasoning_content") or "",
            content=message.get("content") or "",
            tool_calls=tuple((call["name"], call["arguments"]) for call in calls),
            finish_reason=choice["finish_reason"],
            tool_call_errors=parser.tool_call_errors,
        )
    finally:
        parser.close()


def sum_usage(usages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Chat usage of several samples of one prompt."""
    total = dict(usages[0])
    total["completion_tokens"] = sum(usage["completion_tokens"] for usage in usages)
    total["total_tokens"] = total["prompt_tokens"] + total["completion_tokens"]
    details: Counter[str] = Counter()
    for usage in usages:
        details.update(usage.get("completion_tokens_details") or {})
    if details:
        total["completion_tokens_details"] = dict(details)
    return total
