"""Packing: every token exactly once, documents whole, targets that stop at a document's end."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benthic.errors import DataError
from benthic.train.item import Item
from benthic.train.packing import Layout, Packer, TrainBatch, pack, pack_all

LENGTHS = st.lists(st.integers(2, 40), min_size=1, max_size=40)


def documents(lengths: list[int]) -> list[Item]:
    """Documents in which no two tokens are alike, so that a token's origin shows."""
    starts = np.cumsum([0, *lengths])
    return [
        Item(np.arange(starts[i], starts[i + 1]), (starts[i] + np.arange(length)) % 7 + 1)
        for i, length in enumerate(lengths)
    ]


def unpack(batch: TrainBatch) -> list[list[int]]:
    places = list(zip(batch.starts.tolist(), batch.lengths.tolist(), strict=True))
    return [batch.token_ids[s : s + n].tolist() for s, n in places[: len(batch.tags)]]


@given(lengths=LENGTHS, num_open=st.integers(1, 5), max_blocks=st.integers(2, 9))
def test_every_token_appears_exactly_once_and_documents_stay_whole(lengths, num_open, max_blocks):
    items = documents(lengths)
    batches = pack_all(items, Layout(40, max_blocks, 40), num_open)
    got = sorted(document for batch in batches for document in unpack(batch))
    assert got == [item.token_ids.tolist() for item in items]
    assert all(len(batch.lengths) <= max_blocks and batch.lengths.sum() == 40 for batch in batches)


@given(lengths=LENGTHS, depth=st.integers(0, 3))
def test_targets_and_weights_follow_their_document_and_stop_at_its_end(lengths, depth):
    items = documents(lengths)
    batch = pack(items, Layout(2000, 99, 40, depth))
    for item, start in zip(items, batch.starts.tolist(), strict=False):
        for row in range(len(item)):
            assert batch.positions[start + row] == row
            for shift in range(1, depth + 2):
                inside = row + shift < len(item)
                assert batch.targets[shift - 1, start + row] == (item.token_ids[row + shift] if inside else 0)
                assert batch.weights[shift - 1, start + row] == (item.weights[row + shift] if inside else 0)
    assert batch.num_tokens == sum(lengths)
    assert not batch.weights[:, batch.num_tokens :].any()
    assert not batch.token_ids[batch.num_tokens :].any()
    assert batch.lengths.sum() == batch.budget
    assert batch.lengths.max() <= 40


@given(lengths=LENGTHS)
def test_packing_the_same_documents_again_gives_the_same_batches(lengths):
    layout = Layout(40, 40, 40)
    first, second = (pack_all(documents(lengths), layout, 3) for _ in range(2))
    assert [unpack(batch) for batch in first] == [unpack(batch) for batch in second]


def test_a_document_goes_where_it_leaves_the_least_room():
    packer = Packer(Layout(10, 9, 10), num_open=2)
    for item in documents([6, 7, 3]):
        assert packer.put(item) == []
    assert sorted(len(batch.tags) for batch in packer.flush()) == [1, 2]
    assert packer.flush() == []


def test_the_fullest_batch_is_closed_when_nothing_fits():
    packer = Packer(Layout(10, 9, 10), num_open=2)
    for item in documents([6, 9]):
        packer.put(item)
    (closed,) = packer.put(documents([5])[0])
    assert closed.num_tokens == 9


def test_best_fit_fills_short_documents_nearly_full(seed):
    lengths = np.random.default_rng(seed).integers(20, 640, 2000).tolist()
    batches = pack_all(documents(lengths), Layout(16384, 1024, 640))
    assert sum(lengths) / (16384 * len(batches)) > 0.95


def test_a_document_longer_than_the_budget_is_an_error_or_is_split_knowingly():
    (item,) = documents([25])
    with pytest.raises(DataError, match=r"25 tokens is longer than max_len \(10\).*split"):
        pack_all([item], Layout(10, 9, 10))
    batches = pack_all([item], Layout(10, 9, 10, oversize="split"))
    assert sorted(t for batch in batches for document in unpack(batch) for t in document) == list(range(25))


def test_too_many_documents_for_one_batch_are_refused():
    with pytest.raises(DataError, match="do not fit in a batch of 10 rows"):
        pack(documents([6, 6]), Layout(10, 9, 10))
