"""Guessing ahead changes when tokens come and not one bit of them."""

import random

import pytest

from benthic.cache.geometry import CacheCapacity
from benthic.engine.config import EngineConfig
from benthic.engine.drafting import Drafter
from benthic.engine.engine import Engine
from benthic.engine.request import Request
from benthic.engine.sampling import SamplingParams
from benthic.models.transformer import Transformer
from tests.engine.scripted_drafter import OracleDrafter
from tests.exactness.serving import alone, answers, random_requests, run

DRAFTERS = ("ngram", "mtp")


def fixed(depth: int, **settings: object) -> EngineConfig:
    defaults: dict[str, object] = {"max_num_seqs": 4, "draft_adaptive": False, "debug_checks": True}
    return EngineConfig(draft_len=depth, **(defaults | settings))  # type: ignore[arg-type]


def oracle(model: Transformer, requests: list[Request], error_rate: float, seed: int = 0) -> OracleDrafter:
    expected = alone(model, requests)
    known = {r.request_id: [*r.prompt_ids, *expected[r.request_id][0]] for r in requests}  # type: ignore[misc]
    return OracleDrafter(known, error_rate=error_rate, seed=seed)


def long_request(name: str = "long", prompt_len: int = 120, max_tokens: int = 150, **params: object) -> Request:
    rng = random.Random(name)
    defaults: dict[str, object] = {"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True, "logprobs": 1}
    return Request(
        request_id=name,
        prompt_ids=tuple(rng.randrange(2, 512) for _ in range(prompt_len)),
        params=SamplingParams(**(defaults | params)),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("depth", range(1, 9))
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_depth_of_each_drafter_gives_the_plain_answers(
    small_model: Transformer, drafter: str, depth: int
) -> None:
    requests = random_requests(random.Random(f"{drafter} {depth}"), 3, longest=140)
    finals = run(Engine(small_model, fixed(depth, drafter=drafter)), requests)
    assert answers(finals) == alone(small_model, requests)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("error_rate", [0.0, 0.15, 0.6], ids=["all right", "some wrong", "mostly wrong"])
def test_right_and_wrong_drafts_at_any_place_leave_the_cache_as_plain_decoding_does(
    small_model: Transformer, depth: int, error_rate: float
) -> None:
    """Windows of verified rows beyond the smallest compression ratio; entries are read back 150 tokens long."""
    request = long_request()
    drafter = oracle(small_model, [request], error_rate, seed=depth)
    engine = Engine(small_model, fixed(depth, drafter="ngram"), drafter=drafter)
    finals = run(engine, [request])
    assert answers(finals) == alone(small_model, [request])
    # What it left in the cache is what its continuation would have computed.
    more = long_request("more", max_tokens=20)
    more = Request(
        request_id="more",
        prompt_ids=(*request.prompt_ids, *finals["long"].token_ids),
        params=more.params,
    )
    again = run(engine, [more])
    assert again["more"].cached_len > 0
    assert answers(again) == alone(small_model, [more])


def test_right_drafts_are_accepted_and_reported(small_model: Transformer) -> None:
    request = long_request(max_tokens=61)
    engine = Engine(small_model, fixed(5, drafter="ngram"), drafter=oracle(small_model, [request], 0.0))
    final = run(engine, [request])["long"]
    report, stats = final.report, engine.stats()
    assert report is not None
    # The prompt's pass gives one token, each of the ten others six.
    assert (report.drafted, report.accepted) == (stats.num_drafted, stats.num_accepted) == (50, 50)
    assert final.mean_accepted_len == stats.mean_accepted_len == 61 / 11


@pytest.mark.parametrize("place", range(6))
def test_nothing_after_a_stop_inside_an_accepted_run_is_kept(small_model: Transformer, place: int) -> None:
    free = long_request(max_tokens=40)
    tokens = alone(small_model, [free])["long"][0]
    assert isinstance(tokens, tuple)
    stop = tokens[10 + place]
    request = long_request(max_tokens=40, stop_token_ids=(stop,))
    drafter = OracleDrafter({"long": [*free.prompt_ids, *tokens]})
    finals = run(Engine(small_model, fixed(5, drafter="ngram"), drafter=drafter), [request])
    assert answers(finals) == alone(small_model, [request])
    assert finals["long"].stop_token_id == stop


@pytest.mark.parametrize("max_tokens", range(1, 10))
def test_a_run_never_goes_beyond_the_most_tokens(small_model: Transformer, max_tokens: int) -> None:
    free = long_request(max_tokens=40)
    drafter = oracle(small_model, [free], 0.0)
    request = long_request(max_tokens=max_tokens)
    finals = run(Engine(small_model, fixed(8, drafter="ngram"), drafter=drafter), [request])
    assert len(finals["long"].token_ids) == max_tokens
    assert answers(finals) == alone(small_model, [request])


@pytest.mark.parametrize(
    "params",
    [
        {"min_tokens": 25, "stop_token_ids": tuple(range(2, 200))},
        {"frequency_penalty": 1.5, "presence_penalty": 0.5},
        {"repetition_penalty": 1.4},
        {"logit_bias": ((7, 40.0), (9, 39.5))},
        {"reasoning_end_id": 11, "thinking_budget": 13},
        {"temperature": 0.9, "top_p": 0.8, "min_p": 0.01, "seed": 5},
    ],
    ids=["min_tokens", "penalties", "repetition", "bias", "thinking budget", "cuts"],
)
def test_the_rules_of_sampling_hold_at_every_verified_row(small_model: Transformer, params: dict[str, object]) -> None:
    request = long_request(max_tokens=40, **params)
    for error_rate in (0.0, 0.3):
        drafter = oracle(small_model, [request], error_rate, seed=3)
        finals = run(Engine(small_model, fixed(4, drafter="ngram"), drafter=drafter), [request])
        assert answers(finals) == alone(small_model, [request])
    report = finals["long"].report
    assert report is not None and report.accepted > 0


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_small_chunks_hits_and_arrivals_at_random_change_nothing(small_model: Transformer, drafter: str) -> None:
    rng = random.Random(f"mixed {drafter}")
    requests = random_requests(rng, 6, longest=300)
    again = [Request(request_id=f"again {r.request_id}", prompt_ids=r.prompt_ids, params=r.params) for r in requests]
    config = EngineConfig(
        max_num_seqs=4,
        max_batched_tokens=61,
        prefill_chunk=33,
        drafter=drafter,
        draft_len=3,
        debug_checks=True,  # type: ignore[arg-type]
    )
    finals = run(Engine(small_model, config), [*requests, *again], rng, chance=0.3)
    assert answers(finals) == alone(small_model, [*requests, *again])


def test_retraction_in_the_middle_of_speculation_changes_nothing(small_model: Transformer) -> None:
    requests = [long_request(f"r{i}", prompt_len=250, max_tokens=60) for i in range(4)]
    drafter: Drafter = oracle(small_model, requests, 0.3)
    capacity = CacheCapacity(num_pages=7, num_windows=12, num_rows=4, max_len=800)
    engine = Engine(small_model, fixed(4, drafter="ngram", admission_headroom=0), drafter=drafter, capacity=capacity)
    finals = run(engine, requests)
    assert engine.stats().num_retractions > 0
    assert answers(finals) == alone(small_model, requests)


def test_a_seed_draws_the_same_tokens_with_and_without_drafts_and_another_seed_others(
    small_model: Transformer,
) -> None:
    def tokens_with(seed: int, drafter: str) -> tuple[int, ...]:
        request = long_request(temperature=1.0, seed=seed, max_tokens=30)
        return run(Engine(small_model, fixed(3, drafter=drafter)), [request])["long"].token_ids

    assert tokens_with(1, "mtp") == tokens_with(1, "mtp") == tokens_with(1, "none") == tokens_with(1, "ngram")
    assert tokens_with(2, "mtp") != tokens_with(1, "mtp")
