"""A mirror of the tables on another device can be kept equal from the changes alone."""

import random

import numpy as np

from benthic.cache.tables import PageTables
from tests.cache.small_cache import advance, begin, small_cache


def test_nothing_is_recorded_before_somebody_asks_and_then_every_change_once() -> None:
    tables = PageTables(2, 4)
    tables.set_page(1, 2, 7)
    rows, pages = tables.take_changes()
    assert (rows.tolist(), pages.tolist()) == ([1], [2])
    tables.set_window(0, 3, 5)
    tables.set_page(0, 3, 6)
    tables.set_first_pages(1, [8, 9])
    rows, pages = tables.take_changes()
    assert sorted(zip(rows.tolist(), pages.tolist(), strict=True)) == [(0, 3), (1, 0), (1, 1)]
    assert tables.take_changes()[0].size == 0
    tables.clear(1, 3)
    assert tables.take_changes()[0].tolist() == [1, 1, 1] and not tables.pages[1].any()


def test_a_mirror_that_is_fed_the_changes_equals_the_tables(seed: int) -> None:
    cache, rng = small_cache(), random.Random(seed)
    tables = cache.tables
    pages, windows = np.zeros_like(tables.pages), np.zeros_like(tables.windows)
    for i in range(20):
        tokens = [rng.randrange(2) for _ in range(70)]
        row = begin(cache, tokens)
        advance(cache, row, tokens, rng.randint(row.start_len, 70), chunk=16)
        if rng.random() < 0.7:
            cache.close(row, finished=True)
        if len(cache.open_rows) == 8:
            for open_row in list(cache.open_rows.values()):
                cache.close(open_row, finished=False)
        if i % 3 == 0:
            at = tables.take_changes()
            pages[at], windows[at] = tables.pages[at], tables.windows[at]
            assert (pages == tables.pages).all() and (windows == tables.windows).all()
