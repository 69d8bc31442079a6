"""Documents are checked at the door and cut without losing a token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benthic.errors import DataError
from benthic.train.item import Item, split_item


@pytest.mark.parametrize(
    ("ids", "weights", "message"),
    [
        ([1, 2, 3], [1, 1], "equally long"),
        ([1], [1], "nothing to predict"),
        ([1, -2, 3], [1, 1, 1], "token id -2 at 1"),
        ([1, 2, 3], [1, float("nan"), 1], "weight nan at 1"),
        ([1, 2, 3], [1, 1, -0.5], "weight -0.5 at 2"),
        ([1, 2, 3], [1, 0, 0], "zero"),
    ],
    ids=["lengths differ", "one token", "negative id", "nan weight", "negative weight", "nothing counts"],
)
def test_a_document_that_cannot_be_trained_on_is_refused_with_its_fault(ids, weights, message):
    with pytest.raises(DataError, match=message):
        Item(ids, weights)


@given(length=st.integers(2, 60), max_len=st.integers(2, 70))
def test_splitting_keeps_every_token_once_and_in_order(length, max_len):
    item = Item(np.arange(length), np.ones(length), "text")
    pieces = split_item(item, max_len)
    joined = np.concatenate([piece.token_ids for piece in pieces])
    assert all(len(piece) <= max_len for piece in pieces)
    # With pieces of two, an odd length leaves one token over, which alone has nothing to predict.
    expected = length - 1 if max_len == 2 and length % 2 else length
    assert joined.tolist() == list(range(expected))


def test_a_piece_in_which_nothing_counts_is_left_out():
    item = Item(range(6), [0, 0, 0, 0, 0, 1])
    assert [piece.token_ids.tolist() for piece in split_item(item, 3)] == [[3, 4, 5]]
