"""Drafters guess from what they may see, and the depth follows what measured times and acceptance make worthwhile."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benthic.engine.drafting.depth import Acceptance, DepthPolicy, StepTimes
from benthic.engine.drafting.mtp import MtpDrafter
from benthic.engine.drafting.ngram import LookupIndex, NgramDrafter
from benthic.engine.drafting.none import NoDrafter
from benthic.errors import ConfigError
from benthic.models.checkpoint import dummy_model
from tests.engine.conftest import CONFIG


def propose(tokens: list[int], depth: int) -> tuple[int, ...]:
    return NgramDrafter().propose("a", tokens, depth, ())


def test_lookup_continues_the_longest_earlier_occurrence_of_the_end() -> None:
    # "2 3" occurs twice before; preceded by 1 as at the end, it was followed by 7 8.
    assert propose([1, 2, 3, 7, 8, 9, 2, 3, 5, 1, 2, 3], 2) == (7, 8)


def test_of_equally_long_occurrences_the_latest_counts() -> None:
    assert propose([1, 2, 7, 0, 1, 2, 8, 0, 4, 1, 2], 1) == (8,)


def test_a_repetition_goes_on_with_itself() -> None:
    assert propose([1, 2, 3, 1, 2, 3], 7) == (1, 2, 3, 1, 2, 3, 1)
    assert propose([5, 5, 5], 4) == (5, 5, 5, 5)


@pytest.mark.parametrize("tokens", [[1], [1, 2], [1, 2, 3, 4]], ids=["one token", "one pair", "nothing repeats"])
def test_what_never_occurred_gives_no_draft(tokens: list[int]) -> None:
    assert propose(tokens, 4) == ()


@settings(max_examples=60, deadline=None)
@given(tokens=st.lists(st.integers(0, 3), min_size=3, max_size=60), cuts=st.lists(st.integers(1, 60), max_size=5))
def test_an_index_that_grew_finds_what_a_fresh_one_finds(tokens: list[int], cuts: list[int]) -> None:
    grown = LookupIndex()
    for cut in sorted(cuts):
        grown.extend(tokens[:cut])
    grown.extend(tokens)
    fresh = LookupIndex()
    fresh.extend(tokens)
    assert grown.lookup(tokens, 5) == fresh.lookup(tokens, 5)


def test_a_finished_request_leaves_no_index() -> None:
    drafter = NgramDrafter()
    drafter.propose("a", [1, 2, 1, 2], 2, ())
    drafter.forget("a")
    assert drafter.propose("a", [3, 4, 5, 6], 2, ()) == ()


def test_no_drafter_never_drafts() -> None:
    assert NoDrafter().propose("a", [1, 2, 1, 2], 8, ()) == ()


def test_a_model_without_prediction_blocks_cannot_draft_with_them() -> None:
    from dataclasses import replace

    bare = replace(CONFIG, num_nextn_predict_layers=0, compress_ratios=CONFIG.compress_ratios[:4])
    with pytest.raises(ConfigError, match="0 MTP blocks"):
        MtpDrafter(dummy_model(bare, device="cpu", min_rows=1))


def test_step_times_find_the_costs_behind_noisy_passes() -> None:
    rng, times = random.Random(1), StepTimes()
    for _ in range(400):
        rows, chain = rng.randrange(1, 64), rng.randrange(5)
        times.observe(rows, chain, (10.0 + 0.5 * rows + 2.0 * chain) * rng.uniform(0.95, 1.05) * 1e-3)
    base, row, chain_step = times.coefficients()
    assert (base, row, chain_step) == pytest.approx((10e-3, 0.5e-3, 2e-3), rel=0.25)


def test_acceptance_follows_what_holds_and_starts_at_the_prior() -> None:
    fresh = Acceptance()
    assert fresh.rate(0.7) == pytest.approx(0.7)
    for _ in range(50):
        fresh.observe(4, 4)
    assert fresh.rate(0.1) > 0.9
    for _ in range(100):
        fresh.observe(4, 0)
    assert fresh.rate(0.9) < 0.25


def policy_with(row_s: float, chain_s: float, accepted: dict[str, tuple[int, int]], max_depth: int = 8) -> DepthPolicy:
    policy = DepthPolicy(max_depth)
    rng = random.Random(2)
    for _ in range(300):
        rows, chain = rng.randrange(1, 200), rng.randrange(9)
        policy.times.observe(rows, chain, 10e-3 + row_s * rows + chain_s * chain)
    for name, (drafts, held) in accepted.items():
        for _ in range(100):
            policy.observe(name, drafts, held)
    return policy


def test_cheap_rows_and_good_drafts_give_the_full_depth() -> None:
    assert policy_with(1e-5, 1e-5, {"a": (8, 8)}).choose(["a"]) == [8]


def test_dear_rows_or_poor_drafts_give_no_depth() -> None:
    assert policy_with(10e-3, 5e-3, {"a": (4, 1)}).choose(["a"]) == [0]
    assert policy_with(1e-3, 1e-3, {"a": (4, 0)}).choose(["a"]) == [0]


def test_each_request_gets_the_drafts_that_its_own_acceptance_is_worth() -> None:
    policy = policy_with(0.4e-3, 0.2e-3, {"good": (8, 7), "poor": (8, 0)})
    good, poor = policy.choose(["good", "poor"])
    assert good > poor
    assert poor <= 1


def test_where_drafting_does_not_pay_it_is_tried_again_now_and_then() -> None:
    policy = policy_with(10e-3, 5e-3, {"a": (4, 0)})
    depths = [policy.choose(["a"]) for _ in range(200)]
    assert {depth for [depth] in depths} == {0, 1}
    assert sum(depth for [depth] in depths) <= 4


def test_a_fixed_depth_never_changes() -> None:
    policy = DepthPolicy(5, is_adaptive=False)
    for _ in range(100):
        policy.observe("a", 5, 0)
    assert policy.choose(["a", "b"]) == [5, 5]
