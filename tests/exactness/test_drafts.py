"""Speculation changes speed and not one bit: every drafter and depth, greedy and sampled, through hits and chunks."""

import random

import pytest

from benthic.engine.engine import Engine
from benthic.engine.request import FinalOutput
from tests.exactness.probes import Bits, alone, assert_same, ids, random_request, request, serve
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


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("depth", cases(DEPTHS, [1, 4, 8]))
@pytest.mark.parametrize("name", cases(SHAPES, ["pages of 16"]))
def test_every_depth_gives_the_tokens_and_logprobs_of_none(name: str, depth: int, drafter: str) -> None:
    model, page = model_of(name), SHAPES[name].page_size
    rng = random.Random(depth)
    probes = [
        request("greedy", repetitive(rng, page + 3), temperature=0.0, max_tokens=24, logit_bias=FEW),
        request("sampled", repetitive(rng, 2 * page - 1), temperature=0.5, max_tokens=24, seed=depth, logit_bias=FEW),
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
    finals = serve(Engine(model, config), probes, rng, 0.4)
    assert_same({probe.request_id: alone(model, probe, page) for probe in probes}, finals)


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


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_an_answer_ends_at_its_stop_token_and_not_behind_it(drafter: str) -> None:
    """The tokens accepted behind a stop are thrown away with everything that was computed for them."""
    model = model_of("pages of 16")
    prompt = repetitive(random.Random(4), 40)
    bias = (*FEW, (8, 58.0))  # now and then another token: the one that ends the answer
    probe = request("probe", prompt, temperature=1.0, max_tokens=60, stop_token_ids=(8,), logit_bias=bias)
    engine = Engine(model, engine_config("pages of 16", drafter=drafter, draft_len=8, draft_adaptive=False))
    finals = serve(engine, [probe])
    assert_same({"probe": alone(model, probe, 16)}, finals)
    assert finals["probe"].token_ids[-1] == 8
    assert len(finals["probe"].token_ids) > 5
    again = request("again", (*prompt, *finals["probe"].token_ids, 9, 9))
    assert_same({"again": alone(model, again, 16)}, serve(engine, [again]))


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
