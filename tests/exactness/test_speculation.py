"""Speculation changes speed and not one bit: every drafter and depth, greedy and sampled, through hits and chunks."""

import random
from dataclasses import replace
from itertools import product

import pytest

from benthic.cache.geometry import CacheCapacity
from benthic.engine.config import EngineConfig
from benthic.engine.drafting import Drafter
from benthic.engine.engine import Engine
from benthic.engine.request import FinalOutput, Request
from benthic.engine.sampling import SamplingParams
from benthic.models.transformer import Transformer
from tests.engine.scripted_drafter import OracleDrafter
from tests.exactness.serving import Bits, alone, answers, assert_same, each_alone, ids, random_request, request, serve
from tests.exactness.shapes import SHAPES, cases, engine_config, model_of

DRAFTERS = ("ngram", "mtp")
DEPTHS = tuple(range(1, 9))


FEW = tuple((token_id, 60.0) for token_id in (5, 6, 7))
"""A bias after which answers consist of three tokens: an n-gram drafter then always has something to guess."""


def repetitive(rng: random.Random, length: int) -> tuple[int, ...]:
    """A prompt of these tokens."""
    return tuple(rng.choice(FEW)[0] for _ in range(length))


def drafted(finals: dict[str, FinalOutput]) -> tuple[int, int]:
    """(drafted, accepted) tokens of all requests."""
    reports = [final.report for final in finals.values() if final.report is not None]
    return sum(report.drafted for report in reports), sum(report.accepted for report in reports)


BY_DEFAULT = [("pages of 16", depth, "mtp") for depth in DEPTHS] + [("pages of 16", 4, "ngram")]


@pytest.mark.parametrize(("name", "depth", "drafter"), cases(product(SHAPES, DEPTHS, DRAFTERS), BY_DEFAULT))
def test_every_depth_gives_the_tokens_and_logprobs_of_none(name: str, depth: int, drafter: str) -> None:
    model, page = model_of(name), SHAPES[name].page_size
    rng = random.Random(depth)
    probes = [
        request("greedy", repetitive(rng, page + 3), temperature=0.0, max_tokens=16, logit_bias=FEW),
        request("sampled", repetitive(rng, 2 * page - 1), temperature=0.5, max_tokens=16, seed=depth, logit_bias=FEW),
        request("cut", ids(rng, 30), temperature=1.0, top_k=5, max_tokens=15, logprobs=0),
    ]
    config = engine_config(name, drafter=drafter, draft_len=depth, draft_adaptive=False, prefill_chunk=page - 1)
    finals = serve(Engine(model, config), probes, rng, 0.5)
    assert_same({probe.request_id: alone(model, probe, page) for probe in probes}, finals)
    assert drafted(finals)[0] > 0, "nothing was drafted, so nothing was tested"


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", cases(SHAPES, ["window of no whole pages"]))
def test_a_mixture_of_requests_with_adaptive_drafts_keeps_its_bits(name: str, drafter: str) -> None:
    model, page = model_of(name), SHAPES[name].page_size
    rng = random.Random(name)
    probes = [random_request(rng, f"r{i}") for i in range(5)]
    config = engine_config(name, drafter=drafter, draft_len=4, max_num_seqs=4, prefill_chunk=50)
    again = [replace(probe, request_id=f"again {probe.request_id}") for probe in probes]
    finals = serve(Engine(model, config), [*probes, *again], rng, 0.4)
    assert_same(each_alone(model, [*probes, *again], page), finals)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", cases(SHAPES, ["pages of 16"]))
def test_speculation_goes_on_exactly_from_a_prefix_hit(name: str, drafter: str) -> None:
    model, page = model_of(name), SHAPES[name].page_size
    trunk = repetitive(random.Random(2), 3 * page)
    engine = Engine(model, engine_config(name, drafter=drafter, draft_len=3, retention="every_page"))
    serve(engine, [request("first", trunk)])
    for boundary in (page, 2 * page):
        probe = request(
            f"to {boundary}", trunk[:boundary] + (3, 4, 5), max_tokens=page + 9, temperature=0.4, logit_bias=FEW
        )
        finals = serve(engine, [probe])
        report = finals[probe.request_id].report
        assert report is not None
        assert report.usable_match == boundary
        assert_same({probe.request_id: alone(model, probe, page)}, finals)


def test_repetition_is_drafted_and_accepted_by_the_text_itself() -> None:
    """Otherwise the tests above compare an engine that never accepts."""
    model = model_of("pages of 16")
    found = []
    for seed in range(2):
        probe = request("probe", repetitive(random.Random(seed), 60), max_tokens=24, seed=seed, logit_bias=FEW)
        engine = Engine(model, engine_config("pages of 16", drafter="ngram", draft_len=4, draft_adaptive=False))
        finals = serve(engine, [probe])
        assert_same({"probe": alone(model, probe, 16)}, finals)
        found.append(drafted(finals))
    assert sum(accepted for _, accepted in found) > 0, found
    assert any(accepted < drafts for drafts, accepted in found), "no draft was ever rejected"


def test_bits_differ_where_tokens_do() -> None:
    """Negative control of the comparison itself: another seed is another answer."""
    model = model_of("pages of 16")
    prompt = ids(random.Random(0), 20)
    one, other = (alone(model, request("x", prompt, seed=seed, temperature=1.0), 16) for seed in (1, 2))
    assert one.difference(other)
    assert not one.difference(Bits(*one))


def fixed(depth: int, **settings: object) -> EngineConfig:
    defaults: dict[str, object] = {"max_num_seqs": 4, "draft_adaptive": False, "debug_checks": True}
    return EngineConfig(draft_len=depth, **(defaults | settings))  # type: ignore[arg-type]


def oracle(model: Transformer, requests: list[Request], error_rate: float, seed: int = 0) -> OracleDrafter:
    expected = each_alone(model, requests)
    known = {r.request_id: [*r.prompt_ids, *expected[r.request_id][0]] for r in requests}  # type: ignore[misc]
    return OracleDrafter(known, error_rate=error_rate, seed=seed)


def long_request(name: str = "long", prompt_len: int = 120, max_tokens: int = 100, **params: object) -> Request:
    rng = random.Random(name)
    defaults: dict[str, object] = {"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True, "logprobs": 1}
    return Request(
        request_id=name,
        prompt_ids=tuple(rng.randrange(2, 512) for _ in range(prompt_len)),
        params=SamplingParams(**(defaults | params)),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("depth", "error_rate"),
    cases(product((1, 2, 3, 4, 5, 8), (0.0, 0.15, 0.6)), [(1, 0.15), (3, 0.6), (5, 0.15), (8, 0.0)]),
)
def test_right_and_wrong_drafts_at_any_place_leave_the_cache_as_plain_decoding_does(
    small_model: Transformer, depth: int, error_rate: float
) -> None:
    """Windows of verified rows beyond the smallest compression ratio; entries are read back 100 tokens long."""
    request = long_request()
    drafter = oracle(small_model, [request], error_rate, seed=depth)
    engine = Engine(small_model, fixed(depth, drafter="ngram"), drafter=drafter)
    finals = serve(engine, [request])
    assert answers(finals) == each_alone(small_model, [request])
    # What it left in the cache is what its continuation would have computed.
    more = long_request("more", max_tokens=20)
    more = Request(
        request_id="more",
        prompt_ids=(*request.prompt_ids, *finals["long"].token_ids),
        params=more.params,
    )
    again = serve(engine, [more])
    assert again["more"].cached_len > 0
    assert answers(again) == each_alone(small_model, [more])


def test_right_drafts_are_accepted_and_reported(small_model: Transformer) -> None:
    request = long_request(max_tokens=61)
    engine = Engine(small_model, fixed(5, drafter="ngram"), drafter=oracle(small_model, [request], 0.0))
    final = serve(engine, [request])["long"]
    report, stats = final.report, engine.stats()
    assert report is not None
    # The prompt's pass gives one token, each of the ten others six.
    assert (report.drafted, report.accepted) == (stats.num_drafted, stats.num_accepted) == (50, 50)
    assert final.mean_accepted_len == stats.mean_accepted_len == 61 / 11


@pytest.mark.parametrize("place", cases(range(6), [0, 3, 5]))
def test_nothing_after_a_stop_inside_an_accepted_run_is_kept(small_model: Transformer, place: int) -> None:
    free = long_request(max_tokens=40)
    tokens = each_alone(small_model, [free])["long"][0]
    assert isinstance(tokens, tuple)
    stop = tokens[10 + place]
    request = long_request(max_tokens=40, stop_token_ids=(stop,))
    drafter = OracleDrafter({"long": [*free.prompt_ids, *tokens]})
    finals = serve(Engine(small_model, fixed(5, drafter="ngram"), drafter=drafter), [request])
    assert answers(finals) == each_alone(small_model, [request])
    assert finals["long"].stop_token_id == stop


@pytest.mark.parametrize("max_tokens", cases(range(1, 10), [1, 5, 9]))
def test_a_run_never_goes_beyond_the_most_tokens(small_model: Transformer, max_tokens: int) -> None:
    free = long_request(max_tokens=40)
    drafter = oracle(small_model, [free], 0.0)
    request = long_request(max_tokens=max_tokens)
    finals = serve(Engine(small_model, fixed(8, drafter="ngram"), drafter=drafter), [request])
    assert len(finals["long"].token_ids) == max_tokens
    assert answers(finals) == each_alone(small_model, [request])


def test_retraction_in_the_middle_of_speculation_changes_nothing(small_model: Transformer) -> None:
    requests = [long_request(f"r{i}", prompt_len=250, max_tokens=30) for i in range(4)]
    drafter: Drafter = oracle(small_model, requests, 0.3)
    capacity = CacheCapacity(num_pages=7, num_windows=12, num_rows=4, max_len=800)
    engine = Engine(small_model, fixed(4, drafter="ngram", admission_headroom=0), drafter=drafter, capacity=capacity)
    finals = serve(engine, requests)
    assert engine.stats().num_retractions > 0
    assert answers(finals) == each_alone(small_model, requests)


def test_a_seed_draws_the_same_tokens_with_and_without_drafts_and_another_seed_others(
    small_model: Transformer,
) -> None:
    def tokens_with(seed: int, drafter: str) -> tuple[int, ...]:
        request = long_request(temperature=1.0, seed=seed, prompt_len=40, max_tokens=12)
        return serve(Engine(small_model, fixed(3, drafter=drafter)), [request])["long"].token_ids

    assert tokens_with(1, "mtp") == tokens_with(1, "mtp") == tokens_with(1, "none") == tokens_with(1, "ngram")
    assert tokens_with(2, "mtp") != tokens_with(1, "mtp")
