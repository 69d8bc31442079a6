"""Blocks are conserved whatever sequences do, and what a later token reads is always there."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from benthic.cache.block_manager import CacheManager
from benthic.cache.blocks import NULL_BLOCK, BlockPool
from benthic.cache.layout import BLOCK_SIZE, WINDOW, CacheLayout, blocks_for
from benthic.errors import CapacityError

KEPT_LEN = 128


def small_layout() -> CacheLayout:
    return CacheLayout(
        layers=(), num_blocks={WINDOW: 24, 4: 7, 128: 3}, kept_len=KEPT_LEN, max_model_len=1024, num_bytes=0
    )


def test_a_pool_never_hands_out_the_null_block_or_a_block_twice() -> None:
    pool = BlockPool(5)
    taken = pool.take(5)
    assert sorted(taken) == [1, 2, 3, 4, 5]
    with pytest.raises(CapacityError, match="1 cache blocks are needed and 0 are free"):
        pool.take(1)


def test_a_block_that_is_not_owned_cannot_be_freed() -> None:
    pool = BlockPool(5)
    blocks = pool.take(2)
    pool.give_back(blocks)
    with pytest.raises(AssertionError, match="not owned"):
        pool.give_back(blocks[:1])


def test_sliding_keeps_exactly_the_blocks_that_the_next_token_reads() -> None:
    cache = CacheManager(small_layout())
    cache.open(0, 1)
    for length in range(1, 600):
        cache.grow(0, length)
        cache.slide(0, length)
        first_read = max(0, length - (KEPT_LEN - 1))
        live = [i for i, block in enumerate(cache.tables[0].blocks[WINDOW]) if block != NULL_BLOCK]
        assert live == list(range(first_read // BLOCK_SIZE, blocks_for(length, WINDOW)))
        cache.check()


def test_every_block_handed_out_is_reported_fresh_once() -> None:
    cache = CacheManager(small_layout())
    cache.open(0, 300)
    cache.grow(0, 300)
    fresh = cache.take_fresh()
    assert {ratio: sorted(ids) for ratio, ids in fresh.items()} == {WINDOW: [1, 2, 3, 4, 5], 4: [1, 2], 128: [1]}
    assert cache.take_fresh() == {WINDOW: [], 4: [], 128: []}


class CacheMachine(RuleBasedStateMachine):
    """Random lives of sequences; the laws hold after each step and everything comes back at the end."""

    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.cache = CacheManager(small_layout())
        self.lengths: dict[int, int] = {}
        self.next_number = 0

    @rule(target=sequences, total_len=st.integers(1, 1000), growth=st.integers(0, 500))
    def open(self, total_len: int, growth: int) -> int:
        number = self.next_number
        self.next_number += 1
        expected = {other: length + growth for other, length in self.lengths.items()}
        if self.cache.can_open(total_len, expected):
            self.cache.open(number, total_len)
            self.lengths[number] = 0
        return number

    @rule(number=sequences, more=st.integers(1, 200))
    def grow_and_slide(self, number: int, more: int) -> None:
        if number not in self.lengths:
            return
        new_len = self.lengths[number] + more
        if self.cache.can_grow(number, new_len):
            self.cache.grow(number, new_len)
            self.cache.slide(number, new_len)
            self.lengths[number] = new_len

    @rule(number=consumes(sequences))
    def release(self, number: int) -> None:
        if self.lengths.pop(number, None) is not None:
            self.cache.release(number)

    @invariant()
    def laws_hold(self) -> None:
        self.cache.check()

    def teardown(self) -> None:
        for number in self.lengths:
            self.cache.release(number)
        assert self.cache.num_used == 0
        self.cache.check()


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
