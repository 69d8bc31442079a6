"""What a row draws depends on its logits, seed and position: not on its neighbours, nor on what they ask for."""

import pytest
import torch
from torch import Tensor

from benthic.engine.plan import SampledToken
from benthic.engine.request import Request
from benthic.engine.sampler import sample_tokens
from benthic.engine.sampling import SamplingParams
from benthic.engine.scoring import top_logprobs
from benthic.engine.sequence import Sequence

VOCAB_SIZE = 300


def sequence_of(
    number: int = 0, prompt_len: int = 5, stop_ids: frozenset[int] = frozenset(), **params: object
) -> Sequence:
    request = Request(
        request_id=str(number),
        prompt_ids=(1,) * prompt_len,
        params=SamplingParams(**({"seed": 9} | params)),  # type: ignore[arg-type]
    )
    return Sequence(request, number, 1000, stop_ids)


def random_logits(rows: int, seed: int) -> Tensor:
    return 3 * torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))


MIXED = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 5},
    {"temperature": 1.3, "top_p": 0.7, "logprobs": 4},
    {"temperature": 1.0, "min_p": 0.1, "logprobs": 0},
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 1.0, "min_tokens": 3},
]


def test_rows_with_different_wishes_get_what_they_would_get_alone() -> None:
    logits = random_logits(len(MIXED), 1)
    sequences = [sequence_of(i, 5 + i, frozenset(range(0, VOCAB_SIZE, 2)), **params) for i, params in enumerate(MIXED)]
    together = sample_tokens(logits, sequences)
    for row, sequence in enumerate(sequences):
        assert sample_tokens(logits[row : row + 1], [sequence]) == (together[row],)


def test_draws_follow_the_distribution() -> None:
    # Chi-square over 8 likely tokens, 4000 positions: 99.99 % of fair samplers stay below 35.
    logits = torch.log(torch.tensor([0.3, 0.2, 0.15, 0.1, 0.1, 0.08, 0.05, 0.02]))[None].expand(4000, -1)
    sequences = [sequence_of(i, 1 + i % 900, seed=i // 900, temperature=1.0) for i in range(4000)]
    counts = torch.bincount(torch.tensor([token.token_id for token in sample_tokens(logits, sequences)]), minlength=8)
    expected = logits[0].exp() * 4000
    assert ((counts - expected).square() / expected).sum() < 35


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1.0, "top_k": 1}, {"top_p": 1e-9}])
def test_ties_go_to_the_lower_id(params: dict[str, object]) -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [40, 41, 200]] = 5.0
    [token] = sample_tokens(logits, [sequence_of(**params)])
    assert token.token_id == 40


def test_stop_tokens_are_out_of_reach_before_min_tokens_and_logprobs_ignore_that() -> None:
    logits = random_logits(1, 4)
    best = int(logits.argmax())
    [free] = sample_tokens(logits, [sequence_of(temperature=0.0, logprobs=1)])
    [held] = sample_tokens(logits, [sequence_of(stop_ids=frozenset({best}), temperature=0.0, logprobs=1, min_tokens=1)])
    assert free.token_id == best
    assert held.token_id != best
    assert free.logprobs is not None
    assert held.logprobs is not None
    assert held.logprobs.top == free.logprobs.top


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_gives_an_error_and_the_others_their_tokens(bad: float) -> None:
    logits = random_logits(3, 5)
    sequences = [sequence_of(i, temperature=1.0, logprobs=2) for i in range(3)]
    expected = sample_tokens(logits, sequences)
    logits[1, 17] = bad
    found = sample_tokens(logits, sequences)
    assert (found[0], found[2]) == (expected[0], expected[2])
    assert isinstance(found[1], SampledToken)
    assert "not finite" in (found[1].error or "")


@pytest.mark.parametrize("granularity", [1e-4, 0.5, 4.0], ids=["no ties", "some ties", "many ties"])
def test_the_most_likely_tokens_are_in_order_and_ties_by_lower_id(granularity: float) -> None:
    logits = (random_logits(20, 6) / granularity).round() * granularity
    found = top_logprobs(logits, [0] * 20, 5)
    for row, entry in zip(logits.tolist(), found, strict=True):
        expected = sorted(range(VOCAB_SIZE), key=lambda token: (-row[token], token))[:5]
        assert [token for token, _ in entry.top] == expected
