"""Requests at random, engines that run them, and what each request must get."""

import random
from collections.abc import Iterable
from dataclasses import replace

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.request import FinalOutput, Request
from benthic.engine.sampling import SamplingParams
from benthic.models.transformer import Transformer

LENGTHS = (1, 2, 3, 63, 64, 65, 127, 128, 129, 200, 300)


def random_requests(rng: random.Random, count: int, longest: int = 400, vocab_size: int = 512) -> list[Request]:
    """Lengths run past the window, both compression ratios and the indexer's top-k."""
    return [
        Request(
            request_id=f"r{i}",
            prompt_ids=tuple(rng.randrange(2, vocab_size) for _ in range(rng.choice([*LENGTHS, longest]))),
            params=random_params(rng),
        )
        for i in range(count)
    ]


def random_params(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        max_tokens=rng.choice([1, 2, 9, 40]),
        temperature=rng.choice([0.0, 0.7, 1.0]),
        top_p=rng.choice([1.0, 0.9]),
        top_k=rng.choice([0, 20]),
        seed=rng.randrange(1000),
        logprobs=rng.choice([0, 3]),
        frequency_penalty=rng.choice([0.0, 0.0, 0.5]),
        ignore_eos=True,
    )


def run(
    engine: Engine, requests: Iterable[Request], rng: random.Random | None = None, chance: float = 1.0
) -> dict[str, FinalOutput]:
    """Feeds the requests, each step one with that chance, and collects the final outputs."""
    todo, finals = list(requests), {}
    while todo or engine.has_work():
        if todo and (rng is None or rng.random() < chance):
            engine.add(todo.pop(0))
        for event in engine.step():
            if isinstance(event, FinalOutput):
                assert event.request_id not in finals, "two final outputs"
                finals[event.request_id] = event
    return finals


def answers(finals: dict[str, FinalOutput]) -> dict[str, tuple[object, ...]]:
    """What a request got, without the report on how it was served."""
    return {
        name: (f.token_ids, f.logprobs, f.prompt_logprobs, f.finish_reason, f.stop_token_id, f.error)
        for name, f in finals.items()
    }


def alone(model: Transformer, requests: Iterable[Request]) -> dict[str, tuple[object, ...]]:
    """The answers of requests that never meet another one, nor anything cached or guessed."""
    engine = Engine(model, EngineConfig(max_num_seqs=1, prefix_cache=False))
    found: dict[str, tuple[object, ...]] = {}
    for request in requests:
        found |= answers(run(engine, [replace(request, fork_of=None, priority=0)]))
    return found
