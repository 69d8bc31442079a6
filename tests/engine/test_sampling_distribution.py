"""Every filter and rule draws from the distribution that is written down, also through speculation.

The toy model's logits depend on the last token alone. 600 replies a case, five tokens each: for every token the
number of times it was drawn is compared with the sum of its probabilities over all rows, which a slow reference gives.
A speculative run verifies the drafts of a drafter that is right only sometimes, and must give the very same tokens.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from benthic.engine.request import Request
from benthic.engine.sampled_row import SampledRow
from benthic.engine.sampler import sample_rows
from benthic.engine.sampling import SamplingParams
from benthic.engine.sequence import Sequence
from tests.engine.slow_sampling import distribution, ruled_logits

VOCAB_SIZE = 7
NUM_REPLIES = 600
REPLY_LEN = 5
PROMPT = (2, 5)
STOPS = frozenset({4})
TARGET = 1.5 * torch.randn(VOCAB_SIZE, VOCAB_SIZE, generator=torch.Generator().manual_seed(11))
DRAFTER = TARGET + 0.7 * torch.randn(VOCAB_SIZE, VOCAB_SIZE, generator=torch.Generator().manual_seed(12))

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.5},
    "hot": {"temperature": 1.7},
    "greedy": {"temperature": 0.0},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.2},
    "all cuts": {"temperature": 1.5, "top_k": 5, "top_p": 0.9, "min_p": 0.1},
    "presence": {"presence_penalty": 1.2},
    "frequency": {"frequency_penalty": 0.8, "temperature": 0.8},
    "repetition": {"repetition_penalty": 1.6},
    "repetition below 1": {"repetition_penalty": 0.7, "presence_penalty": -0.5},
    "bias": {"logit_bias": {0: 1.5, 3: -100.0}},
    "min_tokens": {"min_tokens": 3},
    "thinking budget": {"thinking_budget": 2, "reasoning_end_id": 6},
    "everything": {
        "temperature": 1.2, "top_k": 6, "top_p": 0.95, "min_p": 0.02, "presence_penalty": 0.5, "frequency_penalty": 0.3,
        "repetition_penalty": 1.2, "logit_bias": {1: 0.5}, "min_tokens": 2, "thinking_budget": 3, "reasoning_end_id": 6,
    },
}  # fmt: skip


def replies(rules: dict[str, Any]) -> list[Sequence]:
    requests = [
        Request(request_id=str(seed), prompt_ids=PROMPT, params=SamplingParams(seed=seed * 7919, **rules))
        for seed in range(NUM_REPLIES)
    ]
    return [Sequence(request, number, 1000, STOPS) for number, request in enumerate(requests)]


def draw(table: Tensor, rows: list[SampledRow]) -> list[int]:
    last = [(row.drafted or row.sequence.tokens)[-1] for row in rows]
    return [token.token_id for token in sample_rows(table[last], rows).result()]


def generate(sequences: list[Sequence]) -> None:
    for _ in range(REPLY_LEN):
        drawn = draw(TARGET, [SampledRow(s, len(s.tokens)) for s in sequences])
        for sequence, token in zip(sequences, drawn, strict=True):
            sequence.tokens.append(token)


def speculate(sequences: list[Sequence], depth: int) -> float:
    """Chains of `depth` drafts; returns the share of them that was right."""
    drafted = accepted = 0
    while live := [s for s in sequences if s.num_generated < REPLY_LEN]:
        chains: list[tuple[int, ...]] = [()] * len(live)
        for _ in range(depth):
            rows = [SampledRow(s, len(s.tokens) + len(c), c) for s, c in zip(live, chains, strict=True)]
            chains = [(*c, token) for c, token in zip(chains, draw(DRAFTER, rows), strict=True)]
        rows = [
            SampledRow(s, len(s.tokens) + i, c[:i]) for s, c in zip(live, chains, strict=True) for i in range(depth + 1)
        ]
        own = iter(draw(TARGET, rows))
        for sequence, chain in zip(live, chains, strict=True):
            verified = [next(own) for _ in range(depth + 1)]
            right = next((i for i in range(depth) if verified[i] != chain[i]), depth)
            drafted, accepted = drafted + depth, accepted + right
            sequence.tokens += verified[: right + 1]
    for sequence in sequences:
        del sequence.tokens[len(PROMPT) + REPLY_LEN :]
    return accepted / drafted


def assert_drawn_as_written(sequences: list[Sequence]) -> None:
    expected, variance, found = [[0.0] * VOCAB_SIZE for _ in range(3)]
    for sequence in sequences:
        for position in range(len(PROMPT), len(sequence.tokens)):
            shares = shares_after(sequence.request.params, tuple(sequence.tokens[:position]))
            found[sequence.tokens[position]] += 1
            for token, share in enumerate(shares):
                expected[token] += share
                variance[token] += share * (1 - share)
    for token in range(VOCAB_SIZE):
        # Five standard deviations; where nothing is left to chance the numbers agree.
        assert abs(found[token] - expected[token]) <= 5 * math.sqrt(variance[token]) + 1e-6, (token, found, expected)


_KNOWN: dict[tuple[SamplingParams, tuple[int, ...]], list[float]] = {}


def shares_after(params: SamplingParams, tokens: tuple[int, ...]) -> list[float]:
    unseeded = SamplingParams(**{name: getattr(params, name) for name in params.__slots__ if name != "seed"})
    key = (unseeded, tokens)
    if key not in _KNOWN:
        logits = ruled_logits(TARGET[tokens[-1]].tolist(), params, PROMPT, tokens[len(PROMPT) :], STOPS)
        _KNOWN[key] = distribution([float(value) for value in logits], params)
    return _KNOWN[key]


BY_DEFAULT = ("hot", "all cuts", "everything")


@pytest.mark.parametrize(
    "name", [name if name in BY_DEFAULT else pytest.param(name, marks=pytest.mark.nightly) for name in CASES]
)
def test_replies_follow_the_written_distribution_with_and_without_speculation(name: str) -> None:
    plain = replies(CASES[name])
    generate(plain)
    assert_drawn_as_written(plain)
    for depth in (1, 2, 3, 4):
        speculative = replies(CASES[name])
        share = speculate(speculative, depth)
        assert [s.tokens for s in speculative] == [s.tokens for s in plain]
        assert 0.1 < share < 0.999, "a drafter that is never wrong, or never right, proves nothing"


def test_common_random_numbers_make_a_drafter_right_more_often_than_chance() -> None:
    sequences = replies({})
    share = speculate(sequences, 1)
    target, drafter = TARGET.softmax(-1), DRAFTER.softmax(-1)
    by_chance = float((target * drafter).sum(-1).mean())
    assert share > by_chance + 0.2


def test_the_same_seed_gives_the_same_reply_and_another_seed_another() -> None:
    first, again = replies({}), replies({})
    generate(first)
    generate(again)
    assert [s.tokens for s in first] == [s.tokens for s in again]
    assert len({tuple(s.tokens) for s in first}) > 300
