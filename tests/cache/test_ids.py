"""Ids are conserved, and what a pass in flight may read is not handed out before its end."""

import pytest

from benthic.cache.ids import Fence, IdPool


def test_a_pool_never_hands_out_the_null_id_or_an_id_twice() -> None:
    pool = IdPool(5, Fence())
    assert sorted(pool.take() for _ in range(5)) == [1, 2, 3, 4, 5]
    assert pool.num_free == 0
    with pytest.raises(IndexError):
        pool.take()


def test_an_id_that_is_not_taken_cannot_be_freed() -> None:
    pool = IdPool(5, Fence())
    taken = pool.take()
    pool.free_now(taken)
    with pytest.raises(AssertionError, match="freed but not taken"):
        pool.free_now(taken)
    with pytest.raises(AssertionError, match="freed but not taken"):
        pool.free_later(taken)


def test_freed_ids_are_handed_out_again_first() -> None:
    pool = IdPool(100, Fence())
    first, _ = pool.take(), pool.take()
    pool.free_now(first)
    assert pool.take() == first


def test_an_id_freed_under_passes_waits_for_those_and_not_for_later_ones() -> None:
    fence = Fence()
    pool = IdPool(3, fence)
    ids = [pool.take() for _ in range(3)]
    first, second = fence.begin(), fence.begin()
    pool.free_later(ids[0])
    third = fence.begin()
    pool.check(ids[1:])
    fence.end(first)
    assert (pool.num_free, pool.num_fenced) == (0, 1)
    fence.end(second)
    assert (pool.num_free, pool.num_fenced) == (1, 0)
    fence.end(third)
    pool.check(ids[1:])


def test_holders_may_end_in_any_order_and_actions_run_in_the_order_in_which_they_came() -> None:
    fence, done = Fence(), []
    first, second = fence.begin(), fence.begin()
    fence.run_after(lambda: done.append("a"))
    fence.end(second)
    fence.run_after(lambda: done.append("b"))
    third = fence.begin()
    fence.run_after(lambda: done.append("c"))
    assert done == [] and fence.num_waiting == 3
    fence.end(first)
    assert done == ["a", "b"]
    fence.end(third)
    fence.run_after(lambda: done.append("d"))
    assert done == ["a", "b", "c", "d"] and not fence.is_raised


def test_a_pool_notices_an_owner_too_many_and_one_too_few() -> None:
    pool = IdPool(3, Fence())
    taken = [pool.take(), pool.take()]
    pool.check(taken)
    with pytest.raises(AssertionError, match="two owners"):
        pool.check([*taken, taken[0]])
    with pytest.raises(AssertionError, match="disagree"):
        pool.check(taken[:1])
