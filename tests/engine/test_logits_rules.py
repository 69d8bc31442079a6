"""A request's rules change its logits as they are written down, at every position and after any drafts."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benthic.engine.logits_rules import apply_rules
from benthic.engine.request import Request
from benthic.engine.sampled_row import SampledRow
from benthic.engine.sampling import SamplingParams
from benthic.engine.sequence import Sequence
from benthic.engine.token_counts import TokenCounts
from tests.engine.slow_sampling import ruled_logits

VOCAB_SIZE = 9
STOPS = frozenset({1, 7})
TOKENS = st.integers(0, VOCAB_SIZE - 1)

PENALTIES = st.one_of(st.just(0.0), st.floats(-2, 2, width=16))
RULES = st.fixed_dictionaries(
    {},
    optional={
        "presence_penalty": PENALTIES,
        "frequency_penalty": PENALTIES,
        "repetition_penalty": st.sampled_from([1.0, 0.5, 1.3, 100.0]),
        "logit_bias": st.dictionaries(TOKENS, st.floats(-100, 100, width=16), max_size=4),
        "min_tokens": st.integers(0, 5),
        "thinking_budget": st.integers(0, 5),
    },
)


def sequence_of(prompt: list[int], generated: list[int], **rules: Any) -> Sequence:
    end = {"reasoning_end_id": 3} if "thinking_budget" in rules else {}
    params = SamplingParams(**rules, **end)
    sequence = Sequence(Request(request_id="a", prompt_ids=tuple(prompt), params=params), 0, 1000, STOPS)
    sequence.tokens += generated
    return sequence


ROW = st.tuples(
    RULES, st.lists(TOKENS, min_size=1, max_size=6), st.lists(TOKENS, max_size=5), st.lists(TOKENS, max_size=3)
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=5), st.integers(0, 2**32 - 1))
def test_every_row_is_changed_as_one_at_a_time(rows: list[Any], seed: int) -> None:
    logits = 3 * torch.randn(len(rows), VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))
    before = logits.clone()
    sampled = []
    for rules, prompt, generated, drafted in rows:
        sequence = sequence_of(prompt, generated, **rules)
        sampled.append(SampledRow(sequence, len(sequence.tokens) + len(drafted), tuple(drafted)))
    found = apply_rules(logits, sampled, {})
    assert torch.equal(logits, before), "the raw logits are what log-probabilities are reported of"
    for place, (row, (_, prompt, generated, drafted)) in enumerate(zip(sampled, rows, strict=True)):
        params = row.sequence.request.params
        expected = ruled_logits(before[place].tolist(), params, prompt, [*generated, *drafted], STOPS)
        assert found[place].tolist() == [float(value) for value in expected]


def test_rows_without_rules_are_not_even_copied() -> None:
    logits = torch.randn(2, VOCAB_SIZE)
    rows = [SampledRow(sequence_of([1], [], temperature=0.3, top_k=4, logprobs=3), 1 + place) for place in range(2)]
    assert apply_rules(logits, rows, {}) is logits


def test_a_row_without_history_may_be_ahead_of_what_the_host_knows() -> None:
    sequence = sequence_of([1, 2], [], min_tokens=2, logit_bias={0: 1.0})
    found = apply_rules(torch.zeros(1, VOCAB_SIZE), [SampledRow(sequence, 4)], {})
    assert found[0].tolist() == [1.0] + [0.0] * (VOCAB_SIZE - 1)


def test_a_row_with_history_may_not() -> None:
    for rules in ({"presence_penalty": 1.0}, {"thinking_budget": 1}):
        row = SampledRow(sequence_of([1], [], **rules), 2)
        with pytest.raises(AssertionError):
            apply_rules(torch.zeros(1, VOCAB_SIZE), [row], {})


@settings(max_examples=200, deadline=None)
@given(
    st.lists(TOKENS, max_size=8),
    st.lists(st.tuples(st.lists(TOKENS, max_size=4), st.lists(TOKENS, max_size=4)), max_size=6),
)
def test_counts_follow_a_growing_sequence_and_forget_drafts(
    prompt: list[int], steps: list[tuple[list[int], list[int]]]
) -> None:
    counts, tokens = TokenCounts(prompt), list(prompt)
    for accepted, drafted in steps:
        tokens += accepted
        found = counts.at(tokens, len(prompt), drafted)
        generated = [*tokens[len(prompt) :], *drafted]
        expected = {token: generated.count(token) for token in {*prompt, *generated}}
        assert dict(zip(found.ids.tolist(), found.counts.tolist(), strict=True)) == expected
        assert found.ids.dtype == found.counts.dtype == np.int64
