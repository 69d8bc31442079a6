"""What a row draws depends on its logits, seed and position: not on its neighbours, nor on what they ask for."""

import pytest
import torch
from torch import Tensor

from benthic.engine.plan import SampledToken
from benthic.engine.request import Request
from benthic.engine.sampled_row import SampledRow
from benthic.engine.sampler import sample_rows
from benthic.engine.sampling import SamplingParams
from benthic.engine.scoring import read_ranked
from benthic.engine.sequence import Sequence
from benthic.kernels.cross_entropy import ranked_logprobs

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


def sample_tokens(logits: Tensor, sequences: list[Sequence]) -> tuple[SampledToken, ...]:
    return sample_rows(logits, [SampledRow(sequence, len(sequence.tokens)) for sequence in sequences]).result()


MIXED = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 5},
    {"temperature": 1.3, "top_p": 0.7, "logprobs": 4},
    {"temperature": 1.0, "min_p": 0.1, "logprobs": 0},
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 1.0, "min_tokens": 3},
    {"temperature": 0.9, "repetition_penalty": 1.5, "logprobs": 1},
    {"temperature": 1.1, "logit_bias": {3: 5.0, 4: -100.0}, "top_k": 7},
    {"temperature": 1.0, "thinking_budget": 0, "reasoning_end_id": 77, "logprobs": 3},
]


def test_rows_with_different_wishes_get_what_they_would_get_alone() -> None:
    logits = random_logits(len(MIXED), 1)
    sequences = [sequence_of(i, 5 + i, frozenset(range(0, VOCAB_SIZE, 2)), **params) for i, params in enumerate(MIXED)]
    together = sample_tokens(logits, sequences)
    for row, sequence in enumerate(sequences):
        assert sample_tokens(logits[row : row + 1], [sequence]) == (together[row],)


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
    found = read_ranked(ranked_logprobs(logits, torch.zeros(20, dtype=torch.int64), 5))
    for row, entry in zip(logits.tolist(), found, strict=True):
        expected = sorted(range(VOCAB_SIZE), key=lambda token: (-row[token], token))[:5]
        assert [token for token, _ in entry.top] == expected


def test_log_probabilities_are_of_the_raw_logits_whatever_the_rules() -> None:
    logits = random_logits(1, 7)
    [token] = sample_tokens(
        logits, [sequence_of(thinking_budget=0, reasoning_end_id=123, logprobs=2, logit_bias={1: 9})]
    )
    raw = logits[0].log_softmax(-1)
    best = sorted(range(VOCAB_SIZE), key=lambda i: -raw[i])[:2]
    assert token.token_id == 123
    assert token.logprobs is not None
    assert token.logprobs.chosen == pytest.approx(float(raw[123]), abs=1e-5)
    assert [i for i, _ in token.logprobs.top] == best


def test_a_zero_below_and_a_zero_above_are_equals() -> None:
    logits = torch.tensor([[-1.0, -0.0, 0.0, -0.0, -2.0]])
    assert read_ranked(ranked_logprobs(logits, torch.tensor([0]), 4))[0].top[0][0] == 1
    assert [token for token, _ in read_ranked(ranked_logprobs(logits, torch.tensor([0]), 5))[0].top] == [1, 2, 3, 0, 4]


def test_more_alternatives_than_there_are_tokens_give_all_tokens() -> None:
    [found] = read_ranked(ranked_logprobs(torch.zeros(1, 3), torch.tensor([2]), 20))
    assert [token for token, _ in found.top] == [0, 1, 2]


def test_a_verified_row_draws_what_its_drafts_would_lead_to() -> None:
    logits = random_logits(4, 8)
    drafts = (4, 9, 4)
    rules = {"presence_penalty": 2.0, "repetition_penalty": 3.0, "temperature": 1.5, "logprobs": 1}
    verified = sequence_of(**rules)
    rows = [SampledRow(verified, 5 + i, drafts[:i]) for i in range(4)]
    together = sample_rows(logits, rows).result()
    alone = sequence_of(**rules)
    for i in range(4):
        assert sample_tokens(logits[i : i + 1], [alone]) == (together[i],)
        alone.tokens += drafts[i : i + 1]


def test_the_drawn_tokens_are_there_before_the_host_reads_them() -> None:
    pending = sample_rows(random_logits(3, 9), [SampledRow(sequence_of(i), 5) for i in range(3)])
    assert pending.token_ids.tolist() == [token.token_id for token in pending.result()]
    assert pending.token_ids.dtype is torch.int64
