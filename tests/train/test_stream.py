"""Workers change who makes a batch, never which batch comes next."""

import pytest

from benthic.errors import DataError
from benthic.train.item import Item
from benthic.train.packing import Layout, TrainBatch, pack
from benthic.train.stream import open_stream

LAYOUT = Layout(8, 4, 8)


class Numbered:
    """Block i holds two batches whose first token tells their number; block `fails_at` cannot be made."""

    batches_per_block = 2

    def __init__(self, fails_at: int = -1) -> None:
        self.fails_at = fails_at

    def block(self, index: int) -> list[TrainBatch]:
        if index == self.fails_at:
            raise ValueError("no such document")
        return [pack([Item([2 * index + i, 1], [1, 1])], LAYOUT) for i in range(2)]


def numbers(stream, count):
    try:
        return [int(stream.next().token_ids[0]) for _ in range(count)]
    finally:
        stream.close()


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("cursor", [0, 5])
def test_batches_come_in_order_from_any_cursor_with_any_number_of_workers(num_workers, cursor):
    stream = open_stream(Numbered(), cursor, num_workers)
    assert numbers(stream, 9) == list(range(cursor, cursor + 9))
    assert stream.cursor == cursor + 9


def test_a_source_that_fails_in_a_worker_is_reported_with_its_words():
    stream = open_stream(Numbered(fails_at=1), 0, 2)
    with pytest.raises(DataError, match=r"worker 1 failed: ValueError: no such document"):
        numbers(stream, 4)
