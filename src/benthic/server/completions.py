"""/v1/completions: text or token ids in, their continuation out; no conversation, no prompt format, no BOS added."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from benthic.engine.request import Event, FinalOutput, Request, TokenLogprobs
from benthic.engine.sampling import SamplingParams, choice_params
from benthic.errors import RequestError
from benthic.server.access_log import arrival_of, note_tally
from benthic.server.body import read_object
from benthic.server.callers import caller_of, owned
from benthic.server.channel import Generation
from benthic.server.errors import ApiError
from benthic.server.extras import choice_extras, prompt_extras, reports_json
from benthic.server.fields import Fields, check_token_ids, refuse
from benthic.server.grammars import ready_grammar
from benthic.server.sampling import MAX_TOKEN_LIMIT, read_extras, read_grammar, read_include_usage, read_sampling
from benthic.server.service import Service, new_id
from benthic.server.streams import DONE, KEEP_ALIVE, EventStream, to_frame, unless_disconnected
from benthic.server.tally import Tally
from benthic.server.text_choice import Piece, TextChoice
from benthic.server.usage import Usage
from benthic.text.grammar import GrammarSpec
from benthic.text.placement import check_placement
from benthic.text.protocol_fields import is_neutral
from benthic.text.sampling_fields import Wishes

DEFAULT_MAX_TOKENS = 16
MAX_LOGPROBS = 20
_IGNORED = ("user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """A checked request. Choices are numbered prompt by prompt: prompt p's i-th answer is choice p * n + i."""

    prompts: tuple[tuple[int, ...], ...]
    n: int
    echo: bool
    generates: bool
    """False when nothing but the echoed prompt is asked for (max_tokens 0), which the engine has scored before."""
    stream: bool
    include_usage: bool
    wishes: Wishes
    grammar: GrammarSpec | None
    params: tuple[SamplingParams, ...]
    """One a prompt: what is left of the context may bound max_tokens."""


async def completions(service: Service, request: HttpRequest) -> Response:
    """Answer one POST /v1/completions."""
    service.channel.check_room()
    body = await read_object(request, service.config, service.intake)
    asked = await unless_disconnected(request, service.intake.run(body, parse, service, Fields(body)))
    asked = replace(asked, wishes=owned(asked.wishes, caller_of(request).owner))
    service.channel.check_room(len(asked.prompts) * asked.n if asked.generates else 0)
    with service.channel.admitted():
        if asked.echo and asked.params[0].logprobs is not None:
            scores = await unless_disconnected(request, _score_prompts(service, asked))
        else:
            scores = [[None] * len(prompt) for prompt in asked.prompts]
        grammar = await unless_disconnected(request, ready_grammar(service.grammars, asked.grammar))
        params = tuple(replace(params, grammar=grammar) for params in asked.params)
        answer = _Answer(service, replace(asked, params=params), scores, arrival_of(request.scope))
    note_tally(request.scope, answer.tally)
    if asked.stream:
        return EventStream(answer.frames(), fail=_failure, close=answer.close)
    try:
        return JSONResponse(await unless_disconnected(request, answer.whole()))
    finally:
        answer.close()


def parse(service: Service, fields: Fields) -> CompletionRequest:
    """Check every field of the body.

    Raises:
        RequestError: a field is wrong; `param` names it.
        ApiError: 404 for an unknown model.
    """
    fields.check(partial(check_placement, endpoint="completions"))
    service.check_model(fields.optional_text("model"))
    n = fields.integer("n", 1, service.config.max_choices) or 1
    fields.only_default("suffix", lambda value: value == "", "absent; text is only continued at its end")
    fields.only_default(
        "best_of", partial(is_neutral, neutral=(n,)), f"absent or equal to n ({n}); answers are not ranked"
    )
    fields.mark(_IGNORED)
    prompts = _read_prompts(service, fields)
    if len(prompts) * n > service.config.max_choices:
        refuse("n", n, f"at most {service.config.max_choices} divided by the number of prompts ({len(prompts)})")
    stream = fields.boolean("stream")
    echo = fields.boolean("echo")
    max_tokens = fields.integer("max_tokens", 0, MAX_TOKEN_LIMIT)
    wishes = read_extras(fields)
    service.check_wishes(wishes)
    if max_tokens == 0 and not echo and wishes.prompt_logprobs is None:
        refuse("max_tokens", max_tokens, "at least 1, or 0 together with echo or prompt_logprobs to score the prompt")
    if max_tokens == 0 and n > 1 and wishes.prompt_logprobs is not None:
        refuse("n", n, "1 where max_tokens is 0 and the prompt is scored")
    params = _read_params(service, fields, prompts, max_tokens, wishes)
    asked = CompletionRequest(
        prompts=prompts,
        n=n,
        echo=echo,
        generates=max_tokens != 0 or wishes.prompt_logprobs is not None,
        stream=stream,
        include_usage=read_include_usage(fields, stream=stream),
        wishes=wishes,
        grammar=read_grammar(fields),
        params=params,
    )
    service.count_unknown(fields)
    return asked


def _read_params(
    service: Service, fields: Fields, prompts: tuple[tuple[int, ...], ...], max_tokens: int | None, wishes: Wishes
) -> tuple[SamplingParams, ...]:
    room = [service.room(len(ids), max_tokens) for ids in prompts]
    params = read_sampling(
        fields,
        max_tokens=DEFAULT_MAX_TOKENS if max_tokens is None else max(max_tokens, 1),
        logprobs=fields.integer("logprobs", 0, MAX_LOGPROBS),
        vocab_size=service.tokenizer.vocab_size,
        eos_token_id=service.tokenizer.eos_token_id,
    )
    params = replace(
        params,
        prompt_logprobs=wishes.prompt_logprobs,
        return_routes=wishes.return_routed_experts,
        return_picks=wishes.return_picks,
    )
    least = 0 if max_tokens == 0 and wishes.prompt_logprobs is not None else 1
    most = params.max_tokens if least == 1 else 0
    return tuple(replace(params, max_tokens=max(min(left if most is None else most, left), least)) for left in room)


def _read_prompts(service: Service, fields: Fields) -> tuple[tuple[int, ...], ...]:
    prompt = fields.raw("prompt")
    size = service.tokenizer.vocab_size
    allowed = f"text, a list of texts, a list of token ids in 0..{size - 1}, or a list of such lists"
    match prompt:
        case str():
            prompts: list[Any] = [prompt]
        case [int() | float(), *_]:
            prompts = [prompt]
        case [str() | list(), *_]:
            prompts = prompt
        case _:
            refuse("prompt", prompt, allowed)
    if len(prompts) > service.config.max_choices:
        refuse("prompt", prompt, f"at most {service.config.max_choices} prompts; it has {len(prompts)}")
    places = [f"prompt[{position}]" for position in range(len(prompts))] if prompts is prompt else ["prompt"]
    kind = type(prompts[0])
    # Ids are continued as they stand; a text begins a document only where its sender says so.
    start = (service.tokenizer.bos_token_id,) if fields.boolean("add_special_tokens") and kind is str else ()
    return tuple(start + _prompt_ids(service, item, kind, place) for item, place in zip(prompts, places, strict=True))


def _prompt_ids(service: Service, prompt: Any, kind: Any, place: str) -> tuple[int, ...]:
    if not isinstance(prompt, kind):
        other = "text" if kind is str else "list of token ids"
        raise RequestError(f"{place} is no {other} as the first one is; prompts must be of one kind", param="prompt")
    if isinstance(prompt, list):
        check_token_ids(prompt, service.tokenizer.vocab_size, param="prompt", place=place)
    ids: list[int] = service.encode(prompt) if isinstance(prompt, str) else prompt
    if not ids:
        raise RequestError(f"{place} is empty; it must be at least one token long", param="prompt")
    return tuple(ids)


def _failure(error: ApiError) -> str:
    return to_frame(error.body())


async def _score_prompts(service: Service, asked: CompletionRequest) -> list[list[TokenLogprobs | None]]:
    num_alternatives = asked.params[0].logprobs
    assert num_alternatives is not None
    return [await service.score(ids, num_alternatives, asked.wishes) for ids in asked.prompts]


class _Answer:
    """The open sequences of one request and the JSON made from them."""

    def __init__(
        self,
        service: Service,
        asked: CompletionRequest,
        scores: list[list[TokenLogprobs | None]],
        arrived_at: float | None,
    ) -> None:
        self._service = service
        self._asked = asked
        self._base = {
            "id": new_id("cmpl"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.name,
        }
        self._usage = Usage(prompt_tokens=sum(map(len, asked.prompts)))
        self._choices = [
            TextChoice(
                service.tokenizer,
                asked.params[p],
                prompt=ids if asked.echo else (),
                scores=scores[p],
                returns_ids=asked.wishes.return_token_ids,
            )
            for p, ids in enumerate(asked.prompts)
            for _ in range(asked.n)
        ]
        self._finals: dict[int, FinalOutput] = {}
        self._generation: Generation = service.channel.open(self._requests(), is_admitted=True, arrived_at=arrived_at)
        service.metrics.prompt_tokens.inc(self._usage.prompt_tokens)

    @property
    def tally(self) -> Tally:
        """What its sequences cost."""
        return self._generation.tally

    def close(self) -> None:
        """Cancel what still runs."""
        self._generation.close()

    async def frames(self) -> AsyncIterator[str]:
        """The stream's frames."""
        async for pieces in self._pieces():
            yield "".join(to_frame(self._chunk(index, piece)) for index, piece in pieces) or KEEP_ALIVE
        last = {"usage": self._usage.to_json()} if self._asked.include_usage else {}
        last |= self._reports()
        if last:
            yield to_frame({**self._base, "choices": [], **last})
        yield DONE

    async def whole(self) -> dict[str, Any]:
        """The answer in one object."""
        parts: list[list[Piece]] = [[] for _ in self._choices]
        async for pieces in self._pieces():
            for index, piece in pieces:
                parts[index].append(piece)
        choices = [self._choice_json(index, Piece.join(pieces)) for index, pieces in enumerate(parts)]
        return {**self._base, "choices": choices, "usage": self._usage.to_json(), **self._reports()}

    async def _pieces(self) -> AsyncIterator[list[tuple[int, Piece]]]:
        """The pieces of all choices as they come; an empty list after a long silence."""
        if self._asked.echo:
            yield [(index, choice.echo()) for index, choice in enumerate(self._choices)]
        if not self._asked.generates:
            yield [(index, Piece("", None, "length")) for index in range(len(self._choices))]
        while not self._generation.is_done:
            events = await self._generation.next_events(self._service.config.keep_alive_s)
            pieces = [(index, self._take(index, event)) for index, event in events]
            found = [(index, piece) for index, piece in pieces if piece is not None]
            if found or not events:
                yield found

    def _take(self, index: int, event: Event) -> Piece | None:
        choice = self._choices[index]
        piece = choice.push(event)
        if isinstance(event, FinalOutput):
            event = choice.final(event)
            self._usage.completion_tokens += choice.num_tokens
            if event.report is not None:
                self._usage.drafted_tokens += event.report.drafted
                self._usage.accepted_tokens += event.report.accepted
            self._finals[index] = event
            self._count_cached(index, event)
        elif choice.is_stopped:
            self._generation.stop(index)
        return piece

    def _choice_json(self, index: int, piece: Piece) -> dict[str, Any]:
        asked = self._asked
        choice = {
            "index": index,
            "text": piece.text,
            "logprobs": piece.logprobs_json(),
            "finish_reason": piece.finish_reason,
        }
        final = self._finals.get(index)
        if final is not None and piece.finish_reason is not None:
            choice |= choice_extras(asked.wishes, final)
            if index % asked.n == 0:
                choice |= prompt_extras(asked.wishes, self._service.tokenizer, asked.prompts[index // asked.n], final)
        return {**choice, "token_ids": list(piece.token_ids)} if asked.wishes.return_token_ids else choice

    def _reports(self) -> dict[str, Any]:
        if not self._asked.wishes.return_report:
            return {}
        return {"benthic": reports_json([self._finals[index] for index in sorted(self._finals)])}

    def _chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        chunk = {**self._base, "choices": [self._choice_json(index, piece)]}
        return {**chunk, "usage": None} if self._asked.include_usage else chunk

    def _count_cached(self, index: int, final: FinalOutput) -> None:
        if index % self._asked.n == 0:
            self._usage.cached_tokens += final.cached_len
            self._service.metrics.cached_tokens.inc(final.cached_len)

    def _requests(self) -> list[Request]:
        n, wishes = self._asked.n, self._asked.wishes
        if not self._asked.generates:
            return []
        return [
            Request(
                request_id=f"{self._base['id']}-{p * n + i}",
                prompt_ids=ids,
                params=choice_params(self._asked.params[p], i),
                priority=wishes.priority,
                cache_salt=wishes.cache_salt,
                timeout_s=wishes.timeout_s,
                fork_of=f"{self._base['id']}-{p * n}" if i else None,
            )
            for p, ids in enumerate(self._asked.prompts)
            for i in range(n)
        ]
