"""The whole engine over a model of hashes: every token is that of brute force, whatever befell its request.

The model is `tests.cache.fingerprint`: its next token changes with any row that the cache holds wrongly.
"""

import random
from typing import cast

import pytest
import torch

from benthic.cache.geometry import CacheCapacity
from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.request import FinalOutput, Request, TokenEvent
from benthic.engine.sampling import SamplingParams
from benthic.models.transformer import Transformer
from tests.cache.fingerprint import FingerprintConfig, FingerprintModel, config, evaluate, latent_config

SIZES = config()
PAGE = 16
MAX_LEN = 200


class Traffic:
    """Random requests to one engine, and what came of them."""

    def __init__(self, seed: int, sizes: FingerprintConfig = SIZES) -> None:
        self.rng, self.sizes = random.Random(seed), sizes
        rng = self.rng
        self.settings = EngineConfig(
            max_num_seqs=rng.choice([2, 4, 7]),
            max_batched_tokens=rng.choice([24, 60, 200]),
            prefill_chunk=rng.choice([8, 17, 64]),
            admission_headroom=rng.choice([0, 32]),
            page_size=PAGE,
            retention=rng.choice(["boundaries", "boundaries", "interval", "every_page", "none"]),
            retention_interval=4 * PAGE,
            overlap_steps=rng.choice([0, 1]),
            drafter=rng.choice(["none", "ngram", "mtp", "mtp"]),
            draft_len=rng.choice([1, 3, 8]),
            draft_adaptive=rng.random() < 0.5,
            debug_checks=True,
        )
        num_pages, num_windows = rng.choice([16, 24, 48]), rng.choice([20, 40])
        num_windows = num_windows if sizes.sliding_window else 0
        capacity = CacheCapacity(num_pages, num_windows, self.settings.max_num_seqs, MAX_LEN)
        # A stand-in has what the engine uses of a Transformer, and nothing else.
        self.engine = Engine(cast(Transformer, FingerprintModel(sizes)), self.settings, capacity=capacity)
        self.trunks = [[rng.randrange(61) for _ in range(MAX_LEN)] for _ in range(2)]
        self.requests: dict[str, Request] = {}
        self.tokens: dict[str, list[TokenEvent]] = {}
        self.finals: dict[str, FinalOutput] = {}
        self.version = 0

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            if self.rng.random() < 0.5:
                self._event()
            self._take(self.engine.step())
        while self.engine.has_work():
            self._take(self.engine.step())
        self.engine.check_laws()
        self.engine.close()

    def _event(self) -> None:
        draw, live = self.rng.random(), [name for name in self.requests if name not in self.finals]
        if draw < 0.75:
            self._add(self.rng.choice([None, None, *live]) if live else None)
        elif draw < 0.80 and live:
            self.engine.cancel(self.rng.choice(live))
        elif draw < 0.87:
            self.version += 1
            weight = torch.tensor([float(self.version)])
            self._take(self.engine.update_weights({"weight": weight}, version=self.version).events)
        elif draw < 0.95:
            self._take(self.engine.pause(self.rng.choice(["keep", "retract"])))
            self.engine.resume()
        else:
            self.engine.flush()

    def _add(self, leader: str | None) -> None:
        rng, name = self.rng, str(len(self.requests))
        trunk = rng.choice(self.trunks)
        prompt = trunk[: rng.choice([0, rng.randint(1, 120), rng.randint(1, 7) * PAGE])]
        prompt += [rng.randrange(61) for _ in range(rng.choice([1, 2, 20]))]
        request = Request(
            request_id=name,
            prompt_ids=self.requests[leader].prompt_ids if leader else tuple(prompt),
            params=SamplingParams(max_tokens=rng.randint(1, 40), top_k=1, seed=rng.randrange(99), ignore_eos=True),
            priority=rng.choice([0, 0, 0, 3]),
            cache_salt=rng.choice(["", "", "", "other"]),
            use_cache=rng.random() < 0.9,
            fork_of=leader,
        )
        self.requests[name], self.tokens[name] = request, []
        self.engine.add(request)

    def _take(self, events: list[TokenEvent | FinalOutput]) -> None:
        for event in events:
            if isinstance(event, TokenEvent):
                self.tokens[event.request_id].append(event)
            else:
                assert event.request_id not in self.finals, "two final outputs"
                self.finals[event.request_id] = event

    def num_wrong(self) -> int:
        """Tokens that the weights which drew them would not have drawn after the tokens before."""
        wrong = 0
        for name, request in self.requests.items():
            tokens = [*request.prompt_ids, *(event.token_id for event in self.tokens[name])]
            for version in {event.weight_version for event in self.tokens[name]}:
                expected = evaluate(self.sizes, tokens, version).next_tokens
                wrong += sum(
                    event.token_id != expected[len(request.prompt_ids) + event.index - 1]
                    for event in self.tokens[name]
                    if event.weight_version == version
                )
        return wrong


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(6, 120, 6))])
def test_random_traffic_gives_the_tokens_of_brute_force(first: int) -> None:
    hits, accepted, retracted, replayed = run_traffic(range(first, first + 6), SIZES)
    assert min(hits, accepted, retracted, replayed) > 0, (hits, accepted, retracted, replayed)


@pytest.mark.parametrize("family", ["V3", "V3.2"])
@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(6, 60, 6))])
def test_a_model_without_windows_gives_them_too_and_replays_nothing(family: str, first: int) -> None:
    hits, accepted, retracted, replayed = run_traffic(range(first, first + 6), latent_config(family))
    assert min(hits, accepted, retracted) > 0, (hits, accepted, retracted)
    assert replayed == 0


def run_traffic(seeds: range, sizes: FingerprintConfig) -> tuple[int, int, int, int]:
    """Asserts that every token is right; returns how many hits, accepted drafts, retractions and replays there were."""
    hits = accepted = retracted = replayed = 0
    for seed in seeds:
        traffic = Traffic(seed, sizes)
        traffic.run(50)
        assert traffic.num_wrong() == 0, f"seed {seed}: {traffic.settings}"
        assert traffic.finals.keys() == traffic.requests.keys()
        for name, final in traffic.finals.items():
            assert final.finish_reason in ("length", "cancelled"), final
            assert list(final.token_ids) == [event.token_id for event in traffic.tokens[name]]
        reports = [final.report for final in traffic.finals.values() if final.report is not None]
        hits += sum(report.usable_match > 0 for report in reports)
        accepted += sum(report.accepted for report in reports)
        retracted += sum(report.num_retractions for report in reports)
        replayed += sum(report.replayed for report in reports)
    return hits, accepted, retracted, replayed


@pytest.mark.parametrize("what", ["a ring is one row short", "snapshots are not restored", "fork copies are not made"])
def test_a_missing_guard_changes_tokens(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.cache.test_fingerprint import MUTATIONS

    MUTATIONS[what](monkeypatch)
    for seed in range(100):
        traffic = Traffic(seed)
        traffic.run(40)
        if traffic.num_wrong():
            return
    pytest.fail(f"no token of 100 runs told that {what}")
