"""Verification finds exactly the drafts that a token-by-token run would have chosen."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benthic.engine.speculate import verify, verify_layout


def runs_of(drafts: list[tuple[int, ...]], drawn: list[int]) -> tuple[list[int], list[int], list[int]]:
    places, padded = verify_layout(drafts)
    found = verify(torch.tensor(drawn), torch.from_numpy(places), torch.from_numpy(padded))
    return found.num_accepted.tolist(), found.newest.tolist(), found.last_places.tolist()


def test_a_run_ends_with_the_first_wrong_draft() -> None:
    assert runs_of([(5, 6, 7)], [5, 6, 9, 7]) == ([2], [9], [2])


def test_right_drafts_after_a_wrong_one_do_not_count() -> None:
    assert runs_of([(5, 6, 7)], [4, 6, 7, 8]) == ([0], [4], [0])


def test_all_drafts_right_give_one_token_more() -> None:
    assert runs_of([(5, 6)], [5, 6, 7]) == ([2], [7], [2])


def test_sequences_without_drafts_have_one_token_each() -> None:
    assert runs_of([(), (), ()], [1, 2, 3]) == ([0, 0, 0], [1, 2, 3], [0, 1, 2])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=8), min_size=1, max_size=6), st.data()
)
def test_any_mixture_of_depths_counts_as_a_loop_counts(pairs: list[list[tuple[int, int]]], data: st.DataObject) -> None:
    drafts = [tuple(draft for draft, _ in own) for own in pairs]
    drawn, expected = [], []
    for own in pairs:
        last = data.draw(st.integers(0, 2))
        tokens = [token for _, token in own] + [last]
        count = 0
        while count < len(own) and own[count][0] == tokens[count]:
            count += 1
        expected.append((count, tokens[count], len(drawn) + count))
        drawn += tokens
    assert list(zip(*runs_of(drafts, drawn), strict=True)) == expected
