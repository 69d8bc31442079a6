"""Drafters guess from what they may see, and the depth follows what measured times and acceptance make worthwhile."""

import random

import numpy as np
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


def test_a_kind_of_pass_that_was_measured_is_believed_over_the_fit() -> None:
    times = StepTimes()
    for rows, chain, seconds in ((1, 0, 10.0), (2, 1, 11.0), (3, 2, 25.0), (4, 3, 26.0)):
        for _ in range(5):
            times.observe(rows, chain, seconds)
    assert [times.predict(rows, rows - 1) for rows in (1, 2, 3, 4)] == pytest.approx([10.0, 11.0, 25.0, 26.0])
    assert times.predict(5, 4) > 26.0


def test_one_slow_pass_does_not_stay() -> None:
    times = StepTimes()
    for seconds in (90.0, 10.0, 10.0, 10.0):
        times.observe(2, 1, seconds)
    assert times.predict(2, 1) == pytest.approx(10.0)
    for _ in range(40):
        times.observe(2, 1, 10.0)
    times.observe(2, 1, 500.0)
    assert times.predict(2, 1) < 11.0


def test_acceptance_is_learnt_for_each_place_and_starts_at_the_prior() -> None:
    fresh = Acceptance(4, 0.95)
    prior = np.full(4, 0.7)
    assert fresh.rates(prior, 4.0) == pytest.approx(0.7)
    for _ in range(100):
        fresh.observe(4, 2)  # the first two hold, the third does not, the fourth is never tried
    first, second, third, fourth = fresh.rates(prior, 4.0)
    assert min(first, second) > 0.9
    assert third < 0.2
    assert fourth == pytest.approx(0.7)
    for _ in range(100):
        fresh.observe(1, 0)
    assert fresh.rates(prior, 4.0)[0] < 0.2


def policy_with(row_s: float, chain_s: float, accepted: dict[str, tuple[int, int]], max_depth: int = 8) -> DepthPolicy:
    policy = DepthPolicy(max_depth)
    while policy.is_sweeping:
        policy.choose(list(accepted))
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
    assert policy_with(30e-3, 20e-3, {"a": (4, 1)}).choose(["a"]) == [0]
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


def simulate(seconds: list[float], held: list[float], passes: int, noise: float = 0.1) -> float:
    """The policy's tokens a second over those of the best fixed depth; `seconds` by depth, `held` by place."""
    rng = random.Random(4)
    most = len(held)
    policy, tokens, total, before = DepthPolicy(most), 0, 0.0, 0
    for number in range(passes):
        name = str(number // 60)  # requests come and go
        [depth] = policy.choose([name])
        accepted = next((k for k in range(before) if rng.random() >= held[k]), before)
        spent = (seconds[before] + seconds[depth]) / 2 * rng.uniform(1 - noise, 1 + noise)
        policy.observe(name, before, accepted)
        policy.times.observe(1 + before, depth, spent)
        tokens, total, before = tokens + 1 + accepted, total + spent, depth
    gains = [1.0]
    for share in held:
        gains.append(gains[-1] * share)
    best = max(sum(gains[: depth + 1]) / seconds[depth] for depth in range(most + 1))
    return tokens / total / best


@pytest.mark.parametrize(
    ("seconds", "held"),
    [
        ([10.2, 13.4, 18.0, 22.0, 26.0], [0.70, 0.45, 0.4, 0.3]),  # one draft is best, deeper ones hold less often
        ([10.0, 11.0, 11.5, 12.0, 12.5], [0.90, 0.85, 0.8, 0.8]),  # the deepest
        ([10.0, 16.0, 20.0, 24.0, 28.0], [0.40, 0.30, 0.2, 0.2]),  # none
        ([10.0, 11.0, 12.0, 19.0, 20.0], [0.80, 0.75, 0.5, 0.4]),  # two: the third costs a jump
    ],
    ids=["one", "all", "none", "two"],
)
def test_the_choice_is_nearly_as_good_as_the_best_fixed_depth(seconds: list[float], held: list[float]) -> None:
    assert simulate(seconds, held, 600) > 0.93
    assert simulate(seconds, held, 6000) > 0.96


def test_the_first_passes_measure_a_few_depths() -> None:
    policy = DepthPolicy(4)
    seen = []
    while policy.is_sweeping:
        seen += policy.choose(["a"])
    assert seen == [2, 2, 2, 1, 1, 1]


def test_a_fixed_depth_never_changes() -> None:
    policy = DepthPolicy(5, is_adaptive=False)
    for _ in range(100):
        policy.observe("a", 5, 0)
    assert policy.choose(["a", "b"]) == [5, 5]
