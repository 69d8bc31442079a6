"""Sources are functions of a number: the same batches for any number of workers and after any interruption."""

from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

from benthic.errors import DataError
from benthic.train.item import Item
from benthic.train.packing import Layout
from benthic.train.sources import GeneratedSource, ListSource, block_seed

LAYOUT = Layout(budget=256, max_blocks=64, max_len=64, mtp_depth=1)


def generate(seed: int) -> Iterator[Item]:
    rng = Random(seed)
    while True:
        length = rng.randint(3, 40)
        yield Item([rng.randrange(50) for _ in range(length)], [1.0] * length)


def ends(seed: int) -> Iterator[Item]:
    yield from (item for item, _ in zip(generate(seed), range(3), strict=False))


def test_a_block_depends_on_its_number_and_the_seed_only():
    a, b = (GeneratedSource(generate, LAYOUT, seed=5) for _ in range(2))
    assert [batch.token_ids.tolist() for batch in a.block(3)] == [batch.token_ids.tolist() for batch in b.block(3)]
    other = GeneratedSource(generate, LAYOUT, seed=6)
    assert a.block(3)[0].token_ids.tolist() != other.block(3)[0].token_ids.tolist()
    assert len({block_seed(seed, index) for seed in range(20) for index in range(20)}) == 400


def test_generated_batches_are_nearly_full():
    source = GeneratedSource(generate, LAYOUT, seed=5, batches_per_block=8)
    batches = [batch for index in range(4) for batch in source.block(index)]
    assert len(batches) == 32
    assert np.mean([batch.num_tokens / batch.budget for batch in batches]) > 0.95


def test_a_generator_that_ends_is_an_error():
    with pytest.raises(DataError, match="ended inside block 0"):
        GeneratedSource(ends, LAYOUT, seed=1).block(0)


def test_a_pass_over_a_list_holds_every_document_once_in_another_order_each_time():
    items = [Item([i, i + 1, i + 2] * 9, [1.0] * 27) for i in range(100)]
    source = ListSource(items, LAYOUT, seed=2)
    passes = [source.block(index) for index in range(2)]
    for batches in passes:
        assert len(batches) == source.batches_per_block
        firsts = [int(batch.token_ids[start]) for batch in batches for start in batch.starts[: len(batch.tags)]]
        assert sorted(firsts) == list(range(100))
    first, second = ([batch.token_ids[0] for batch in batches] for batches in passes)
    assert first != second


def test_an_empty_list_is_an_error():
    with pytest.raises(DataError, match="at least one"):
        ListSource([], LAYOUT, seed=2)
