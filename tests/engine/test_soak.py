"""Everything at once: arrivals, cancels, pauses, forks and a cache too small for all, for as long as it takes."""

import random
from dataclasses import dataclass, field

import pytest

from benthic.cache.geometry import CacheCapacity
from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.request import Event, FinalOutput, Request
from benthic.engine.sampling import SamplingParams
from benthic.models.transformer import Transformer
from tests.exactness.serving import answers, each_alone


def requests_of(rng: random.Random, count: int) -> list[Request]:
    # Shared prompts among them: equal prompts side by side must not hurt each other, and forks are theirs.
    shared = [tuple(rng.randrange(2, 512) for _ in range(n)) for n in (40, 260, 520)]
    requests: list[Request] = []
    for i in range(count):
        is_shared = rng.random() < 0.4
        own = tuple(rng.randrange(2, 512) for _ in range(rng.randint(1, 560)))
        prompt = rng.choice(shared) if is_shared else own
        leader = next((r.request_id for r in requests if r.prompt_ids == prompt), None)
        requests.append(
            Request(
                request_id=f"r{i}",
                prompt_ids=prompt,
                params=SamplingParams(max_tokens=rng.randint(1, 30), seed=i, logprobs=0, ignore_eos=True),
                priority=rng.choice([0, 0, 3]),
                fork_of=leader if rng.random() < 0.5 else None,
            )
        )
    return requests


@dataclass
class Soak:
    """An engine under a random load, and what came out."""

    engine: Engine
    rng: random.Random
    finals: dict[str, FinalOutput] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)

    def run(self, requests: list[Request]) -> None:
        todo = list(requests)
        while todo or self.engine.has_work():
            while todo and self.rng.random() < 0.3:
                self.engine.add(todo.pop(0))
            if self.rng.random() < 0.03:
                name = self.rng.choice(requests).request_id
                self.cancelled.add(name)
                self.engine.cancel(name)
            if self.rng.random() < 0.02:
                self.take(self.engine.pause(self.rng.choice(["keep", "retract"])))
                self.engine.resume()
            if self.rng.random() < 0.02:
                self.engine.flush()
            self.take(self.engine.step())

    def take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, FinalOutput):
                assert event.request_id not in self.finals
                self.finals[event.request_id] = event


def config_of(rng: random.Random) -> EngineConfig:
    drafter = rng.choice(["none", "none", "ngram", "mtp"])
    return EngineConfig(
        max_num_seqs=6,
        max_batched_tokens=rng.choice([40, 300]),
        prefill_chunk=rng.choice([7, 64]),
        admission_headroom=rng.choice([0, 100]),
        overlap_steps=rng.choice([0, 1]),
        retention=rng.choice(["boundaries", "every_page", "none"]),
        drafter=drafter,
        draft_len=rng.randint(1, 8),
        debug_checks=True,
    )


def soak(model: Transformer, seed: int, count: int) -> None:
    rng = random.Random(seed)
    requests = requests_of(rng, count)
    # One context at full length and little more.
    capacity = CacheCapacity(num_pages=rng.randint(6, 12), num_windows=rng.randint(12, 20), num_rows=6, max_len=640)
    load = Soak(Engine(model, config_of(rng), capacity=capacity), rng)
    load.run(requests)
    assert len(load.finals) == count
    assert load.engine.stats().used_pages == 0
    expected, found = each_alone(model, requests), answers(load.finals)
    for name, final in load.finals.items():
        if final.finish_reason == "cancelled":
            assert name in load.cancelled
            tokens = expected[name][0]
            assert isinstance(tokens, tuple)
            assert final.token_ids == tokens[: len(final.token_ids)]
        else:
            assert found[name] == expected[name], (seed, name)


@pytest.mark.parametrize("seed", [1])
def test_a_short_soak_gives_every_request_what_it_gets_alone(small_model: Transformer, seed: int) -> None:
    soak(small_model, seed, count=8)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [2, 3, *range(10, 40)])
def test_a_long_soak_gives_every_request_what_it_gets_alone(small_model: Transformer, seed: int) -> None:
    soak(small_model, seed, count=40)
