"""The manager in scripted scenes: gaps and replays, forks, passes in flight, rows that share nothing, device work."""

import random
import time

import pytest

from benthic.cache.manager import CacheManager
from benthic.cache.row import Row
from benthic.cache.work import Copy, Restore
from tests.cache.small_cache import NAMESPACE, advance, begin, serve, small_cache


def test_a_short_gap_is_computed_from_its_window_and_a_long_one_replayed_from_its_end() -> None:
    cache, tokens = small_cache(), list(range(200))
    serve(cache, tokens[:64])
    serve(cache, [*tokens[:80], 999, *range(500, 540)])
    gap = begin(cache, [*tokens[:80], 1])
    assert gap.match == (64, 80, "no window") and gap.replay_len == 16
    assert (gap.start_len, gap.stored_len, gap.exact_len) == (64, 80, 0)
    cache.close(gap, finished=False)
    serve(cache, [*tokens[:128], 999, *range(500, 540)])
    replay = begin(cache, [*tokens[:128], 1])
    assert replay.match == (80, 128, "no window") and replay.replay_len == 22
    assert (replay.start_len, replay.stored_len, replay.exact_len) == (106, 128, 120)
    assert cache.tables.pages[replay.index, :8].all() and not cache.tables.windows[replay.index].any()
    cache.close(replay, finished=False)


def test_the_boundary_at_the_end_of_a_replay_gets_its_window_and_earlier_ones_do_not() -> None:
    cache, tokens = small_cache(policy="none"), list(range(100))
    serve(cache, tokens)
    row = begin(cache, tokens)
    advance(cache, row, tokens, 97)
    assert [node.window != 0 for node in row.path] == [False, False, False, False, False, True]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 40, 48, 55])
def test_a_fork_shares_whole_pages_and_copies_the_rest(length: int) -> None:
    cache, tokens = small_cache(), list(range(60))
    row = begin(cache, tokens)
    advance(cache, row, tokens, length)
    cache.take_work()
    fork = cache.fork(row)
    assert fork is not None and fork.committed_len == fork.start_len == length
    whole, tables = length // 16, cache.tables
    assert (tables.pages[fork.index, :whole] == tables.pages[row.index, :whole]).all()
    work = cache.take_work()
    assert work.row_copies == (Copy(row.index, fork.index),) and work.fresh_rows == (fork.index,)
    partial = [] if length % 16 == 0 else [whole]
    for copies, table in ((work.page_copies, tables.pages), (work.window_copies, tables.windows)):
        assert list(copies) == [Copy(int(table[row.index, p]), int(table[fork.index, p])) for p in partial]
    advance(cache, row, tokens, 60)
    advance(cache, fork, [*tokens[:length], *[7] * 60], 60)
    cache.close(row, finished=True)
    cache.close(fork, finished=True)
    cache.check()


def test_a_fork_of_a_fork_is_copied_from_where_the_data_is() -> None:
    cache, tokens = small_cache(), list(range(40))
    row = begin(cache, tokens)
    advance(cache, row, tokens, 40)
    cache.take_work()
    child = cache.fork(row)
    assert child is not None
    grandchild = cache.fork(child)
    assert grandchild is not None
    work = cache.take_work()
    page = int(cache.tables.pages[row.index, 2])
    assert {copy.source for copy in work.page_copies} == {page} and len(work.page_copies) == 2
    assert work.row_copies == (Copy(row.index, child.index), Copy(row.index, grandchild.index))


def test_what_a_queued_copy_reads_is_kept_until_the_copy_is_made_and_a_cancelled_one_holds_nothing() -> None:
    cache, tokens = small_cache(), list(range(40))
    row = begin(cache, tokens)
    advance(cache, row, tokens, 40)
    fork = cache.fork(row)
    assert fork is not None
    cache.close(row, finished=False)
    assert cache.stats().num_rows == 2, "its partial page is still to be copied"
    cache.close(fork, finished=False)
    assert cache.stats().num_rows == 0 and cache.take_work().row_copies == ()
    cache.check()


def test_ids_freed_under_a_pass_are_neither_free_nor_lost_until_it_ends() -> None:
    cache, tokens = small_cache(num_pages=4, num_windows=4, num_rows=1), list(range(60))
    row = begin(cache, tokens, use_cache=False)
    cache.grow(row, 60)
    cache.take_work()
    cache.begin_pass(1)
    cache.close(row, finished=False)
    cache.check()
    assert cache.open(tokens, 60, NAMESPACE) is None
    assert cache.stats().pages.free == 0
    cache.end_pass(1)
    cache.check()
    assert cache.stats().pages.free == 4
    again = begin(cache, tokens)
    assert cache.room(again, 60) == 60


def test_passes_end_in_the_order_in_which_they_began() -> None:
    cache = small_cache()
    cache.begin_pass(3)
    cache.begin_pass(4)
    with pytest.raises(AssertionError, match="pass 4 ends before pass 3"):
        cache.end_pass(4)
    with pytest.raises(AssertionError, match="begins after"):
        cache.begin_pass(4)


def test_a_row_without_cache_reuses_nothing_leaves_nothing_and_still_forks() -> None:
    cache, tokens = small_cache(policy="every_page"), list(range(60))
    serve(cache, tokens)
    cached = cache.stats().pages.cached
    row = begin(cache, tokens, use_cache=False)
    assert row.match == (0, 0, "not asked") and row.start_len == 0
    advance(cache, row, tokens, 60)
    fork = cache.fork(row)
    assert fork is not None and len(fork.path) == 3
    cache.close(row, finished=True)
    cache.take_work()
    advance(cache, fork, [*tokens, *tokens], 70)
    cache.close(fork, finished=True)
    assert cache.stats().pages.cached == cached and cache.stats().num_namespaces == 1


def test_every_id_handed_out_is_fresh_exactly_once_before_it_is_used(seed: int) -> None:
    rng, cache = random.Random(seed), small_cache(num_pages=12, num_windows=6, num_rows=3)
    for _ in range(60):
        tokens = [rng.randrange(2) for _ in range(rng.randint(17, 60))]
        row = begin(cache, tokens)
        cache.take_work()
        while row.committed_len < len(tokens):
            first, end = row.allocated_len // 16, min(len(tokens), row.committed_len + 16)
            cache.grow(row, end)
            last = row.allocated_len // 16
            work = cache.take_work()
            pages = cache.tables.pages[row.index, max(first, len(row.path)) : last].tolist()
            windows = cache.tables.windows[row.index, first:last].tolist()
            assert (list(work.fresh_pages), list(work.fresh_windows)) == (pages, windows)
            cache.commit(row, end, tokens)
        cache.close(row, finished=rng.random() < 0.5)
        assert cache.take_work().is_empty


def test_a_restore_does_not_outlive_its_row() -> None:
    cache, tokens = small_cache(), list(range(50))
    serve(cache, tokens)
    cache.take_work()
    row = begin(cache, tokens)
    window = row.path[-1].window
    cache.close(row, finished=False)
    assert cache.take_work().restores == ()
    row = begin(cache, tokens)
    assert cache.take_work().restores == (Restore(row.index, window, 48),)


def test_extras_come_back_with_the_pages_and_pages_without_are_not_reused_where_they_are_needed() -> None:
    cache, tokens = small_cache(), list(range(80))
    row = begin(cache, tokens)
    cache.grow(row, 48)
    cache.commit(row, 48, tokens, lambda page: f"routes {page}")
    cache.grow(row, 80)
    cache.commit(row, 80, tokens)
    cache.close(row, finished=True)
    plain = begin(cache, [*tokens, 1])
    assert cache.row_extras(plain) == ["routes 0", "routes 1", "routes 2", None, None]
    picky = begin(cache, [*tokens, 1], need_extras=True)
    assert picky.match == (0, 48, "no window")
    assert cache.row_extras(picky) == ["routes 0", "routes 1", "routes 2"]
    advance(cache, picky, [*tokens, 1], 64)
    cache.grow(picky, 80)
    cache.commit(picky, 80, [*tokens, 1], lambda page: f"late {page}")
    assert [node.extras for node in picky.path] == ["routes 0", "routes 1", "routes 2", None, "late 4"]


def test_a_replayed_page_takes_no_extras_for_not_even_its_last_rows_are_exact_in_the_last_layer() -> None:
    cache, tokens = small_cache(window=16, policy="none"), list(range(100))
    serve(cache, tokens)
    row = begin(cache, tokens)
    assert (row.start_len, row.stored_len, row.exact_len, row.whole_from) == (50, 96, 80, 96)
    cache.grow(row, 100)
    cache.commit(row, 100, tokens, lambda page: f"inexact {page}")
    assert [node.extras for node in row.path] == [None] * 6


def test_room_says_exactly_how_far_a_row_can_grow() -> None:
    cache, tokens = small_cache(num_pages=5, num_windows=3), list(range(80))
    row = begin(cache, tokens)
    assert cache.room(row, 80) == 48
    cache.grow(row, 48)
    assert cache.room(row, 80) == 48
    with pytest.raises(AssertionError, match="no room"):
        cache.grow(row, 49)
    cache.commit(row, 48, tokens)
    assert cache.room(row, 80) == 80
    assert cache.room(row, 700) == 80
    assert small_cache(max_len=30).largest_len == 30


@pytest.mark.parametrize("length", [4096, 1 << 20])
def test_a_decode_step_costs_the_same_at_any_length(length: int) -> None:
    """Between pages a step compares numbers. The bound is far above what is measured: machines are shared."""
    num_pages = length // 128 + 2
    cache = small_cache(num_pages=num_pages, num_windows=80, max_len=length + 256, page_size=128, window=128)
    tokens = [0] * (length + 256)
    row = begin(cache, tokens[:length], use_cache=False)
    for end in range(8192, length + 1, 8192):
        cache.grow(row, end)
        cache.commit(row, end, tokens)
    cache.grow(row, length)
    cache.commit(row, length, tokens)
    cache.take_work()
    best = min(_time_decode(cache, row, tokens) for _ in range(3))
    assert best < 20e-6, f"{best * 1e6:.1f} us a token"


def _time_decode(cache: CacheManager, row: Row, tokens: list[int]) -> float:
    start, first = row.committed_len, time.perf_counter()
    for end in range(start + 1, start + 33):
        cache.grow(row, cache.room(row, end))
        cache.commit(row, end, tokens)
    return (time.perf_counter() - first) / 32
