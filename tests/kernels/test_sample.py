"""sample: the distribution, the cuts in their order, ties, and draws that no batch changes."""

import math

import pytest
import torch

from benthic.errors import KernelInputError
from benthic.kernels.sample import sample
from benthic.kernels.sample.cases import ROW_INPUTS, inputs
from benthic.kernels.sample.random_numbers import mix, uniform
from tests.kernels import laws

DRAWS = 20_000


def draws(logits: list[float], **settings: float) -> torch.Tensor:
    """Shares of each token over many positions of one seed."""
    given = inputs(DRAWS, vocab_size=len(logits), **({"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0} | settings))
    given |= {"seeds": torch.full((DRAWS,), 7), "positions": torch.arange(DRAWS)}
    ids = sample(**(given | {"logits": torch.tensor([logits]).expand(DRAWS, -1)}))
    return torch.bincount(ids, minlength=len(logits)) / DRAWS


def close(shares: torch.Tensor, expected: list[float]) -> bool:
    """Within five standard deviations."""
    p = torch.tensor(expected)
    return bool(((shares - p).abs() <= 5 * (p * (1 - p) / DRAWS).sqrt() + 1e-9).all())


def test_draws_follow_the_softmax() -> None:
    logits = [0.0, 1.0, 2.0, -1.0, 0.5]
    assert close(draws(logits), torch.tensor(logits).softmax(0).tolist())
    assert close(draws(logits, temperature=0.5), (torch.tensor(logits) / 0.5).softmax(0).tolist())


def test_cuts_keep_what_they_say_and_renormalise() -> None:
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert close(draws(logits, top_k=2), [4 / 7, 3 / 7, 0, 0])
    assert close(draws(logits, top_p=0.65), [4 / 7, 3 / 7, 0, 0])
    assert close(draws(logits, top_p=0.01), [1, 0, 0, 0])
    assert close(draws(logits, min_p=0.4), [4 / 9, 3 / 9, 2 / 9, 0])


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    # Of 0.4 + 0.3 the first alone is 0.57: enough for 0.5 after top-k, not before.
    assert close(draws(logits, top_k=2, top_p=0.5), [1, 0, 0, 0])
    assert close(draws(logits, top_p=0.5), [4 / 7, 3 / 7, 0, 0])


def test_temperature_comes_before_top_p() -> None:
    logits = [math.log(p) for p in (0.5, 0.3, 0.2)]
    assert close(draws(logits, temperature=0.1, top_p=0.9), [1, 0, 0])


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_ties_go_to_the_lower_token(impl: str) -> None:
    given = inputs(64, vocab_size=6, temperature=0)
    given["logits"] = torch.tensor([[1.0, 3.0, 3.0, 0.0, 3.0, 3.0]]).expand(64, -1)
    assert (sample(**given, impl=impl) == 1).all()
    given = inputs(64, vocab_size=6, temperature=1, top_k=2, top_p=1, min_p=0) | {"logits": given["logits"]}
    assert set(sample(**given, impl=impl).tolist()) == {1, 2}


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_a_draw_is_the_same_in_any_batch_and_order(impl: str) -> None:
    given = inputs(laws.ALL_ROWS)
    laws.assert_rows_ignore_neighbours(lambda **rest: sample(**rest, impl=impl), given, ROW_INPUTS)
    order = torch.randperm(laws.ALL_ROWS)
    shuffled = {name: value[order] for name, value in given.items()}
    assert torch.equal(sample(**shuffled, impl=impl), sample(**given, impl=impl)[order])


def test_another_seed_or_position_draws_anew() -> None:
    given = inputs(500, temperature=1, top_k=0, top_p=1, min_p=0)
    first = sample(**given)
    assert not torch.equal(first, sample(**(given | {"seeds": given["seeds"] + 1})))
    assert not torch.equal(first, sample(**(given | {"positions": given["positions"] + 1})))


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_forbidden_tokens_are_never_drawn(impl: str) -> None:
    given = inputs(300, vocab_size=8, temperature=2, top_p=1, min_p=0)
    given["logits"][:, 3:] = float("-inf")
    assert (sample(**given, impl=impl) < 3).all()


def test_the_hash_is_splitmix64() -> None:
    # State 0, first two outputs of the published generator.
    golden = torch.tensor([0x9E3779B97F4A7C15 - (1 << 64)])
    assert int(mix(golden)) & (2**64 - 1) == 0xE220A8397B1DCDAF
    assert int(mix(golden * 2)) & (2**64 - 1) == 0x6E789E6AA1B965F4


def test_uniform_numbers_are_uniform_and_below_one() -> None:
    u = uniform(torch.full((DRAWS,), 3), torch.arange(DRAWS))
    assert ((u >= 0) & (u < 1)).all()
    counts = torch.histc(u.float(), 20, 0, 1)
    assert ((counts - DRAWS / 20).abs() < 5 * (DRAWS / 20) ** 0.5).all()
    assert abs((u[1:] * u[:-1]).mean() - 0.25) < 0.01


def test_settings_of_another_length_are_refused_by_name() -> None:
    given = inputs(4)
    with pytest.raises(KernelInputError, match=r"top_p has shape \(3,\)"):
        sample(**(given | {"top_p": torch.ones(3)}))
