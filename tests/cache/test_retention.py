"""Which windows stay, and that staying is a preference: a full pool takes them all."""

import pytest

from benthic.cache.retention import retention
from benthic.errors import ConfigError
from tests.cache.small_cache import NAMESPACE, begin, serve, small_cache


def kept(policy: str, prompt_len: int, branch_len: int = 0, *, interval: int = 64) -> list[int]:
    chosen = retention(policy, page_size=16, interval=interval)
    return [end for end in range(16, 161, 16) if chosen.is_checkpoint(end, prompt_len, branch_len)]


def test_each_policy_keeps_its_boundaries() -> None:
    assert kept("boundaries", 100) == [64, 96, 128]
    assert kept("boundaries", 100, branch_len=32) == [32, 64, 96, 128]
    assert kept("interval", 100, branch_len=32) == [64, 128]
    assert kept("every_page", 100) == list(range(16, 161, 16))
    assert kept("none", 100, branch_len=32) == []


def test_a_prompt_that_ends_with_a_page_keeps_a_page_for_itself_and_one_for_its_continuation() -> None:
    assert kept("boundaries", 48, interval=1024) == [32, 48]


def test_an_unknown_policy_or_a_broken_interval_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match=r"'all'.*must be one of boundaries, every_page, interval, none"):
        retention("all")
    with pytest.raises(ConfigError, match=r"\(100\) must be a positive multiple of the page size \(128\)"):
        retention("interval", interval=100)


def test_the_worked_example_of_prompts_that_branch() -> None:
    """A: 1000 tokens in, 600 out. B repeats 900 of them. C and D share 700: C finds the branch, D uses it."""
    cache = small_cache(page_size=256, window=128, max_len=4096, interval=8192)
    tokens = list(range(1600))
    serve(cache, tokens[:1000], tokens[1000:])
    windows = [node.window != 0 for node in cache.trie.nodes()]
    assert windows == [False, False, True, False, False, True]
    assert serve(cache, [*tokens[:900], 9000, 9001]).match == (768, 768, "whole prompt")
    assert serve(cache, [*tokens[:700], 9100, 9101]).match == (0, 512, "no window")
    assert serve(cache, [*tokens[:700], 9200, 9201]).match == (512, 512, "whole prompt")


def test_the_end_of_an_output_is_kept_and_the_pages_between_are_tombstones() -> None:
    cache = small_cache()
    serve(cache, list(range(40)), list(range(100)))
    assert [node.window != 0 for node in cache.trie.nodes()] == [False, True, False, False, False, False, False, True]
    assert cache.stats().num_checkpoints == 2


def test_without_retention_no_window_outlives_its_row_and_prefixes_come_back_by_replay() -> None:
    cache = small_cache(policy="none")
    tokens = list(range(100))
    serve(cache, tokens)
    assert cache.stats().windows.cached == 0
    row = begin(cache, tokens)
    assert row.match == (0, 96, "no window")
    assert (row.start_len, row.stored_len, row.replay_len) == (96 - 22, 96, 22)


def test_checkpoints_outlive_other_windows_and_still_go_when_the_pool_is_full() -> None:
    cache = small_cache(num_windows=4, num_pages=40)
    serve(cache, list(range(40)))
    aborted = begin(cache, list(range(100, 140)))
    cache.grow(aborted, 40)
    cache.commit(aborted, 40, list(range(100, 140)))
    cache.close(aborted, finished=False)
    assert cache.stats().num_checkpoints == 2  # both prompts end with one
    for start in (200, 300, 400):
        serve(cache, list(range(start, start + 40)), chunk=16)
        cache.check()
    assert cache.match([*range(40)], NAMESPACE).usable_len == 0
    assert cache.match([*range(400, 440)], NAMESPACE).usable_len == 32
