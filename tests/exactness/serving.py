"""Requests through the whole engine, and the bits of their answers.

Two answers are the same when their tokens, every log-probability and the reason of their end are. What a report says
(hits, retractions, accepted drafts) differs from run to run and is compared with nothing.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import NamedTuple

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.request import FinalOutput, Request, TokenLogprobs
from benthic.engine.sampling import SamplingParams
from benthic.models.transformer import Transformer

_KNOWN: dict[tuple[Transformer, float, Request, int], "Bits"] = {}


class Bits(NamedTuple):
    """What an answer is."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None
    finish_reason: str
    stop_token_id: int | None
    error: str | None

    @classmethod
    def of(cls, final: FinalOutput) -> "Bits":
        """Of a finished request."""
        return cls(
            final.token_ids,
            final.logprobs,
            final.prompt_logprobs,
            final.finish_reason,
            final.stop_token_id,
            final.error,
        )

    def difference(self, other: "Bits") -> str:
        """Where two answers part, for a message; empty when they are the same."""
        if self == other:
            return ""
        ours, theirs = (zip_longest(bits.token_ids, bits.logprobs or ()) for bits in (self, other))
        for i, (a, b) in enumerate(zip(ours, theirs, strict=False)):
            if a != b:
                return f"token {i}: {a} != {b}"
        return f"{len(self.token_ids)} and {len(other.token_ids)} tokens, {self[2:]} and {other[2:]}"


def ids(rng: random.Random, length: int, vocab_size: int = 512) -> tuple[int, ...]:
    """A prompt; the end token is not in it."""
    return tuple(rng.randrange(2, vocab_size) for _ in range(length))


def request(request_id: str, prompt_ids: Sequence[int], **params: object) -> Request:
    """A sampled request with two alternatives a token, of which every bit is compared."""
    given: dict[str, object] = {"max_tokens": 12, "temperature": 0.8, "seed": 11, "logprobs": 2, "ignore_eos": True}
    return Request(
        request_id=request_id,
        prompt_ids=tuple(prompt_ids),
        params=SamplingParams(**{**given, **params}),  # type: ignore[arg-type]
    )


def random_request(rng: random.Random, request_id: str, longest: int = 300, max_tokens: int = 24) -> Request:
    """Any request: lengths around pages, windows and blocks, every way to sample."""
    lengths = [n for n in (1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 257, 300, longest) if n <= longest]
    return request(
        request_id,
        ids(rng, rng.choice(lengths)),
        max_tokens=rng.randint(1, max_tokens),
        temperature=rng.choice([0.0, 0.7, 1.0]),
        top_p=rng.choice([1.0, 0.9]),
        top_k=rng.choice([0, 20]),
        seed=rng.randrange(1000),
        logprobs=rng.choice([0, 3]),
        frequency_penalty=rng.choice([0.0, 0.0, 0.5]),
    )


def random_requests(rng: random.Random, count: int, longest: int = 300, max_tokens: int = 24) -> list[Request]:
    """So many, named r0, r1, ..."""
    return [random_request(rng, f"r{i}", longest, max_tokens) for i in range(count)]


def serve(
    engine: Engine, requests: Iterable[Request], rng: random.Random | None = None, chance: float = 1.0
) -> dict[str, FinalOutput]:
    """Feeds requests, each step one with that chance, until all have ended."""
    todo, finals = list(requests), {}
    while todo or engine.has_work():
        while todo and (rng is None or rng.random() < chance):
            engine.add(todo.pop(0))
        for event in engine.step():
            if isinstance(event, FinalOutput):
                assert event.request_id not in finals, "two final outputs"
                finals[event.request_id] = event
    return finals


def alone(model: Transformer, one: Request, page_size: int = 128) -> Bits:
    """The answer of a request that has an engine to itself: no cache, no neighbour, no drafts, nothing in flight.

    Computed once for a request, model and state of its weights.
    """
    one = replace(one, request_id="alone", fork_of=None, priority=0)
    weights = sum(float(weight.double().sum()) for weight in model.parameters())
    key = (model, weights, one, page_size)
    if key not in _KNOWN:
        config = EngineConfig(
            max_num_seqs=1,
            page_size=page_size,
            retention_interval=page_size * 64,
            prefix_cache=False,
            cache_bytes=1 << 26,
            overlap_steps=0,
        )
        _KNOWN[key] = Bits.of(serve(Engine(model, config), [one])["alone"])
    return _KNOWN[key]


def each_alone(model: Transformer, requests: Iterable[Request], page_size: int = 128) -> dict[str, Bits]:
    """The answers of requests that never meet another one."""
    return {one.request_id: alone(model, one, page_size) for one in requests}


def answers(finals: dict[str, FinalOutput]) -> dict[str, Bits]:
    """What requests got, without the reports on how they were served."""
    return {name: Bits.of(final) for name, final in finals.items()}


def assert_same(expected: dict[str, Bits], finals: dict[str, FinalOutput]) -> None:
    """Every expected answer is there with its bits."""
    for name, bits in expected.items():
        difference = bits.difference(Bits.of(finals[name]))
        assert not difference, f"{name}: {difference}; {finals[name].report}"
