"""Conversations over HTTP, one path for every protocol: body -> prompt -> engine -> reply.

`text.prompt` judges the body and writes the prompt, `text.stream` reads the generated ids and writes the wire form of
the protocol; here they meet the engine. A protocol differs from the next in its route only.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from benthic.engine.cut import AnswerCut
from benthic.engine.grammar import Grammar
from benthic.engine.request import Event, FinalOutput, Request, TokenEvent
from benthic.engine.sampling import SamplingParams, choice_params
from benthic.errors import BenthicError
from benthic.server.access_log import arrival_of, note_tally
from benthic.server.body import read_object
from benthic.server.callers import caller_of, owned
from benthic.server.envelopes import anthropic_type
from benthic.server.errors import ApiError
from benthic.server.extras import choice_extras, prompt_extras, reports_json
from benthic.server.fields import refuse
from benthic.server.grammars import ready_grammar
from benthic.server.service import Service, new_id
from benthic.server.streams import KEEP_ALIVE, EventStream, to_frame, unless_disconnected
from benthic.server.tally import Tally
from benthic.server.text_choice import check_finished
from benthic.text.prompt import Prompt
from benthic.text.protocol_fields import Protocol
from benthic.text.reply import FinishReason
from benthic.text.sampling_fields import EXTRA_FIELDS
from benthic.text.stream import ReplyStream
from benthic.text.wire import Event as WireEvent

_ID_PREFIX: dict[Protocol, tuple[str, str]] = {
    "chat": ("chatcmpl", "-"),
    "responses": ("resp", "_"),
    "messages": ("msg", "_"),
}


class Asked(NamedTuple):
    """A request that is ready for the engine."""

    prompt: Prompt
    grammar: Grammar | None


async def converse(service: Service, request: HttpRequest, protocol: Protocol) -> Response:
    """Answer one request of a conversation protocol."""
    service.channel.check_room()
    body = await read_object(request, service.config, service.intake)
    asked = await unless_disconnected(request, read_prompt(service, protocol, body, caller_of(request).owner))
    answer = Answer(service, *asked, arrival_of(request.scope))
    note_tally(request.scope, answer.tally)
    if answer.is_stream:
        return EventStream(answer.frames(), fail=answer.failure, close=answer.close)
    try:
        return JSONResponse(await unless_disconnected(request, answer.whole()))
    finally:
        answer.close()


async def open_answer(service: Service, protocol: Protocol, body: Mapping[str, Any], owner: str = "") -> "Answer":
    """Check a body, write its prompt and hand it to the engine. The caller closes the answer.

    Only requests of the same `owner` share cached prefixes.

    Raises:
        RequestError: the body is wrong; `param` names the field.
        ApiError, CapacityError: the server is full or shutting down.
    """
    return Answer(service, *await read_prompt(service, protocol, body, owner))


async def read_prompt(service: Service, protocol: Protocol, body: Mapping[str, Any], owner: str) -> Asked:
    """Check a body, write its prompt and try its grammar; nothing reaches the engine yet.

    Raises:
        RequestError: the body is wrong; `param` names the field.
    """
    prompt = await service.intake.run(body, service.prompts.encode, protocol, body)
    prompt = replace(prompt, wishes=owned(prompt.wishes, owner))
    _check_wishes(service, prompt)
    service.metrics.unknown_fields.inc(len(prompt.ignored))
    return Asked(prompt, await ready_grammar(service.grammars, prompt.grammar))


class Answer:
    """The open sequences of one request and the reply made from them."""

    def __init__(
        self, service: Service, prompt: Prompt, grammar: Grammar | None, arrived_at: float | None = None
    ) -> None:
        self._service = service
        self._prompt = prompt
        reply_id = new_id(*_ID_PREFIX[prompt.protocol])
        self._reply = ReplyStream(prompt, service.tokenizer, reply_id=reply_id)
        self._finals: dict[int, FinalOutput] = {}
        self._cuts = [AnswerCut() for _ in range(prompt.num_samples)]
        try:
            self._generation = service.channel.open(_requests(prompt, reply_id, grammar), arrived_at=arrived_at)
        except BenthicError:
            self._reply.close()
            raise
        service.metrics.prompt_tokens.inc(len(prompt.token_ids))

    @property
    def is_stream(self) -> bool:
        """Whether the client asked for a stream."""
        return self._prompt.is_stream

    @property
    def tally(self) -> Tally:
        """What its sequences cost."""
        return self._generation.tally

    def close(self) -> None:
        """Cancel what still runs."""
        self._generation.close()
        self._reply.close()

    def failure(self, error: ApiError) -> str:
        """The frames that end a stream after an error."""
        kind = anthropic_type(error) if self._prompt.protocol == "messages" else error.kind
        return _wire(self._reply.fail(error.message, error_type=kind, code=error.code))

    async def frames(self) -> AsyncIterator[str]:
        """The stream's frames, up to and including the closing one."""
        yield _wire(self._reply.start())
        while not self._generation.is_done:
            events = await self._generation.next_events(self._service.config.keep_alive_s)
            wire = "".join(_wire(self._push(index, event)) for index, event in events)
            if wire or not events:
                yield wire or KEEP_ALIVE
        if self._prompt.wishes.wants_extras and self._prompt.protocol == "chat":
            yield to_frame(self._with_extras({**self._reply.chat_head(), "choices": self._empty_choices()}))
        yield _wire(self._reply.end())

    async def whole(self) -> dict[str, Any]:
        """The reply as one JSON object."""
        async for _ in self.frames():
            pass
        return self._with_extras(self._reply.body())

    def _empty_choices(self) -> list[dict[str, Any]]:
        """What the last chunk of a stream hangs its extras on."""
        return [{"index": index, "delta": {}, "finish_reason": None} for index in sorted(self._finals)]

    def _with_extras(self, body: dict[str, Any]) -> dict[str, Any]:
        """The object with what was asked for beside the text; where there are no choices, all at the top."""
        wishes, finals = self._prompt.wishes, self._finals
        if not wishes.wants_extras:
            return body
        body |= prompt_extras(wishes, self._service.tokenizer, self._prompt.token_ids, finals[0])
        for choice in body["choices"] if self._prompt.protocol == "chat" else [body]:
            choice |= choice_extras(wishes, finals[choice.get("index", 0)])
        if wishes.return_report:
            body["benthic"] = reports_json([finals[index] for index in sorted(finals)])
        return body

    def _push(self, index: int, event: Event) -> list[WireEvent]:
        if isinstance(event, FinalOutput):
            if self._reply.is_finished(index):  # by its text, before the engine ended it
                event = self._cuts[index].apply(event)
            check_finished(event)
            self._finals[index] = event
            if index == 0:
                self._service.metrics.cached_tokens.inc(event.cached_len)
            cached_len = self._finals[0].cached_len if 0 in self._finals else None
            drafts = (0, 0) if event.report is None else (event.report.drafted, event.report.accepted)
            reason: FinishReason = "length" if event.finish_reason == "length" else "stop"
            return self._reply.finish(index, reason, cached_len, drafts)
        if self._reply.is_finished(index):
            return []
        self._cuts[index].take(event)
        events = self._reply.push(index, (event.token_id,), _logprobs(event))
        if self._reply.is_finished(index):
            self._generation.stop(index)
        return events


def _check_wishes(service: Service, prompt: Prompt) -> None:
    wishes = prompt.wishes
    service.check_wishes(wishes)
    if prompt.is_stream and wishes.wants_extras and prompt.protocol != "chat":
        name = next(name for name in EXTRA_FIELDS if getattr(wishes, name) not in (None, False))
        refuse(name, getattr(wishes, name), f"absent in a stream of {prompt.protocol}, which has no place for it")


def _wire(events: list[WireEvent]) -> str:
    return "".join(event.wire for event in events)


def _logprobs(event: TokenEvent) -> list[tuple[float, tuple[tuple[int, float], ...]]] | None:
    return None if event.logprobs is None else [(event.logprobs.chosen, event.logprobs.top)]


def _requests(prompt: Prompt, reply_id: str, grammar: Grammar | None) -> list[Request]:
    # Stop strings are not among these: they end the answer's text, which the reply watches.
    params = SamplingParams(**asdict(prompt.sampling), n=prompt.num_samples, grammar=grammar)
    ids = tuple(prompt.token_ids)
    return [
        Request(
            request_id=f"{reply_id}-{sample}",
            prompt_ids=ids,
            params=choice_params(params, sample),
            priority=prompt.wishes.priority,
            cache_salt=prompt.wishes.cache_salt,
            timeout_s=prompt.wishes.timeout_s,
            fork_of=f"{reply_id}-0" if sample else None,
        )
        for sample in range(prompt.num_samples)
    ]
