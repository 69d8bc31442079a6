"""Failures that other systems had in the bookkeeping of their caches, one test each, named by what went wrong there."""

import random

import pytest

from benthic.cache.geometry import CacheCapacity, CacheGeometry
from benthic.cache.layout import LayerCache
from benthic.cache.manager import CacheManager
from benthic.cache.retention import retention
from benthic.cache.row import Row
from tests.cache.small_cache import NAMESPACE, advance, begin, serve, small_cache

PAGE = 16


def random_tokens(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1000) for _ in range(length)]


def floor(length: int) -> int:
    return length // PAGE * PAGE


def test_a_warm_request_always_begins_with_a_restored_ring_and_its_window(seed: int) -> None:
    cache, prompt = small_cache(), random_tokens(seed, 50)
    serve(cache, prompt)
    for i in range(5):
        serve(cache, random_tokens(seed + 1 + i, 30))
        cache.take_work()
        row = begin(cache, prompt)
        assert row.match.usable_len == row.start_len == 48
        (restore,) = cache.take_work().restores
        window = int(cache.tables.windows[row.index, 2])
        assert restore == (row.index, window, 48) and window
        advance(cache, row, prompt, 50)
        cache.close(row, finished=True)


@pytest.mark.parametrize("tail", [0, 10, 100])
def test_a_prompt_that_is_sent_again_hits_up_to_its_last_boundary_whatever_its_tail(tail: int, seed: int) -> None:
    cache, prefix = small_cache(), random_tokens(seed, 200)
    serve(cache, prefix)
    for i in range(3):
        prompt = prefix + random_tokens(seed + 1 + i, tail)
        assert serve(cache, prompt).match.usable_len >= floor(199)


@pytest.mark.parametrize("length", range(1, 100))
def test_every_prompt_longer_than_a_page_hits(length: int, seed: int) -> None:
    cache, prompt = small_cache(), random_tokens(seed, length)
    serve(cache, prompt)
    match = serve(cache, prompt).match
    assert match.usable_len == match.compressed_len == floor(length - 1)
    assert match.cut == ("whole prompt" if length > PAGE else "shorter than a page")


@pytest.mark.parametrize("shared", range(1, 131))
def test_a_shared_prefix_of_any_length_is_found_at_once_and_usable_from_the_third_request_on(
    shared: int, seed: int
) -> None:
    cache, prefix = small_cache(), random_tokens(seed, shared)
    prompts = [prefix + [2000 + i] + random_tokens(seed + 1 + i, 40) for i in range(3)]
    serve(cache, prompts[0])
    second = serve(cache, prompts[1])
    assert second.match.compressed_len == floor(shared)
    assert second.stored_len - second.start_len <= cache.geometry.replay_len
    assert serve(cache, prompts[2]).match.usable_len == floor(shared)


@pytest.mark.parametrize("drafts", [1, 2, 3, 4])
def test_prefixes_hit_while_drafts_are_verified(drafts: int, seed: int) -> None:
    """Rejected drafts take pages and windows for a while; what is shared are accepted tokens alone."""
    rng, cache = random.Random(seed), small_cache()
    tokens = random_tokens(seed, 120)
    row = begin(cache, tokens[:40])
    advance(cache, row, tokens, 40)
    while row.committed_len < 120:
        end = min(120, row.committed_len + 1 + drafts)
        cache.grow(row, end)
        cache.commit(row, min(120, row.committed_len + rng.randint(1, 1 + drafts)), tokens)
        cache.check()
    cache.close(row, finished=True)
    assert cache.match([*tokens, 5], NAMESPACE).usable_len == floor(120)
    serve(cache, [*tokens, 5])
    assert cache.stats().counts.usable_len > 0


def test_what_is_evicted_between_asking_and_opening_is_a_miss_and_no_crash(seed: int) -> None:
    cache, prompt = small_cache(), random_tokens(seed, 50)
    serve(cache, prompt)
    assert cache.match(prompt, NAMESPACE).usable_len == 48
    cache.flush()
    row = serve(cache, prompt)
    assert row.match == (0, 0, "namespace empty") and row.start_len == 0


@pytest.mark.parametrize("policy", ["boundaries", "every_page", "none"])
def test_swapping_a_sequence_out_and_in_costs_at_most_a_page_or_a_replay(policy: str, seed: int) -> None:
    cache, tokens = small_cache(policy=policy), random_tokens(seed, 200)
    row = begin(cache, tokens[:50])
    advance(cache, row, tokens, 50)
    for committed in range(60, 200, 7):
        advance(cache, row, tokens, committed, chunk=1)
        cache.close(row, finished=False)
        row = begin(cache, tokens[: committed + 1], 50)
        limit = cache.geometry.replay_len if policy == "none" else 0
        assert row.stored_len == floor(committed) and row.replay_len <= limit
        advance(cache, row, tokens, committed)


def test_after_a_cancelled_reply_an_edited_message_hits_its_common_prefix(seed: int) -> None:
    cache = small_cache()
    history = random_tokens(seed, 70)
    serve(cache, history[:60], history[60:])
    cancelled = begin(cache, history + random_tokens(seed + 1, 20))
    advance(cache, cancelled, history + random_tokens(seed + 1, 30), 95)
    cache.close(cancelled, finished=False)
    reused = []
    for turn in range(4):
        history = history + random_tokens(seed + 2 + turn, 20)
        row = serve(cache, history, output := random_tokens(seed + 9 + turn, 10))
        reused.append(row.match.usable_len)
        history = history + output
    assert reused == [floor(70), floor(100), floor(130), floor(160)]


@pytest.mark.parametrize("j", range(60))
def test_a_prompt_that_diverges_anywhere_reuses_nothing_behind_the_divergence(j: int, seed: int) -> None:
    cache, prompt = small_cache(policy="every_page"), random_tokens(seed, 60)
    serve(cache, prompt)
    other = prompt[:j] + [1000] + prompt[j + 1 :]
    row = serve(cache, other)
    assert row.match.usable_len == row.match.compressed_len == floor(j)


@pytest.mark.parametrize("other", [("weights", 1, ""), ("others", 0, ""), ("weights", 0, "tenant")])
def test_other_weights_versions_and_tenants_share_nothing(other: tuple[str, int, str], seed: int) -> None:
    cache, prompt = small_cache(), random_tokens(seed, 50)
    serve(cache, prompt)
    row = begin(cache, prompt, namespace=other)
    assert row.match == (0, 0, "namespace empty")
    advance(cache, row, prompt, 50)
    cached = {node.page for node in cache.trie.nodes() if node.namespace == NAMESPACE}
    assert not cached & set(cache.tables.pages[row.index].tolist())


@pytest.mark.parametrize("num_windows", [2, 10, 50, 200])
def test_the_hit_fraction_of_a_session_does_not_fall_with_its_length(num_windows: int, seed: int) -> None:
    """A long prefix has next to no windows; only the last one before the resumption is asked for."""
    length = num_windows * 8
    cache = small_cache(num_pages=300, num_windows=8, max_len=2400)
    session = random_tokens(seed, length)
    serve(cache, session)
    for turn in range(5):
        session = session + random_tokens(seed + turn, 10)
        row = serve(cache, session)
        assert row.match.usable_len == floor(len(session) - 10)


def test_unlocking_releases_what_was_locked_though_windows_went_in_between(seed: int) -> None:
    cache = small_cache(num_windows=7, policy="every_page")
    prompt = random_tokens(seed, 100)
    rows: list[Row] = []
    for i in range(3):
        row = begin(cache, prompt + random_tokens(seed + i, 5))
        advance(cache, row, prompt + random_tokens(seed + i, 5), 65 + 20 * i, chunk=PAGE)
        rows.append(row)
    assert cache.stats().counts.num_evicted_windows > 0
    for row in rows:
        cache.close(row, finished=False)
        cache.check()
    assert all(node.locks == node.window_locks == 0 for node in cache.trie.nodes())


def run_to_end(cache: CacheManager, requests: list[list[int]], drafts: int) -> int:
    """Serves all requests, verifying drafts; where nobody can go on the youngest is retracted. Returns retractions."""
    waiting, running, retractions = [(tokens, 1) for tokens in requests], [], 0
    while waiting or running:
        if waiting and (row := cache.open(waiting[0][0], 1, NAMESPACE)):
            running.append((row, waiting.pop(0)[0]))
        has_moved = False
        for row, tokens in list(running):
            want = min(len(tokens), row.committed_len + 1 + drafts)
            end = cache.room(row, want)
            if end > row.committed_len:
                cache.grow(row, end)
                cache.take_work()
                cache.commit(row, row.committed_len + 1, tokens)
                has_moved = True
            if row.committed_len == len(tokens):
                running.remove((row, tokens))
                cache.close(row, finished=True)
        if not has_moved and running:
            row, tokens = running.pop()
            cache.close(row, finished=False)
            waiting.append((tokens, 1))
            retractions += 1
        assert retractions < 500, "nobody comes further"
    return retractions


def test_fifty_requests_with_drafts_in_tiny_pools_all_finish(seed: int) -> None:
    cache = small_cache(num_pages=8, num_windows=5, max_len=128)
    requests = [random_tokens(seed + i, 20 + i) for i in range(50)]
    assert run_to_end(cache, requests, drafts=4) > 0
    cache.check()
    cache.flush()
    stats = cache.stats()
    assert (stats.pages.free, stats.windows.free, stats.num_rows) == (8, 5, 0)


@pytest.mark.parametrize("num_windows", [2, 3, 8, 40])
@pytest.mark.parametrize("num_pages", [6, 13, 40])
@pytest.mark.parametrize("policy", ["boundaries", "every_page"])
def test_a_pool_full_of_finished_prefixes_admits_whatever_fits(
    num_pages: int, num_windows: int, policy: str, seed: int
) -> None:
    """Whichever pool is the bottleneck: evicting aims at the one that is short."""
    cache = small_cache(num_pages=num_pages, num_windows=num_windows, policy=policy)
    for i in range(12):
        serve(cache, random_tokens(seed + i, 70), chunk=PAGE)
    longest = random_tokens(seed + 99, cache.largest_len)
    assert serve(cache, longest, chunk=PAGE).committed_len == min(640, num_pages * PAGE)


def test_a_request_that_is_aborted_before_its_first_pass_changes_nothing_that_is_cached(seed: int) -> None:
    cache, history = small_cache(), random_tokens(seed, 100)
    serve(cache, history)
    before = cache.match([*history, 1], NAMESPACE)
    row = begin(cache, history + random_tokens(seed + 1, 400))
    cache.close(row, finished=False)
    cache.check()
    assert cache.match([*history, 1], NAMESPACE) == before
    assert cache.stats().num_rows == 0


def test_recomputing_a_page_whose_window_was_evicted_gives_it_one_and_leaks_none(seed: int) -> None:
    cache, prompt = small_cache(policy="every_page"), random_tokens(seed, 50)
    serve(cache, prompt)
    for _ in range(3):
        cache.windows.free_now(cache.trie.evict_window())
    assert cache.match(prompt, NAMESPACE) == (0, 48, "no window")
    serve(cache, prompt)
    assert cache.match(prompt, NAMESPACE) == (48, 48, "whole prompt")
    windows = cache.stats().windows
    assert (windows.free, windows.cached, windows.private) == (39, 1, 0)
    assert cache.stats().counts.num_donations == 1


@pytest.mark.parametrize("page_size", [4, 8, 256])
@pytest.mark.parametrize("drafts", range(5))
def test_no_page_is_lost_or_counted_twice_for_any_page_size_and_number_of_drafts(
    page_size: int, drafts: int, seed: int
) -> None:
    layers = (LayerCache(4, True, 4, 2), LayerCache(0, False, 4, 0))
    geometry = CacheGeometry(page_size, 8, layers, 2, drafts)
    num_pages = 2 + 600 // page_size
    policy = retention("boundaries", page_size=page_size, interval=page_size * 8)
    cache = CacheManager(geometry, CacheCapacity(num_pages, 12, 3, 300), policy)
    run_to_end(cache, [random_tokens(seed + i % 3, 40 + 7 * i) for i in range(8)], drafts)
    cache.check()
    pages, windows = cache.stats().pages, cache.stats().windows
    for pool in (pages, windows):
        assert pool.free + pool.cached + pool.private + pool.fenced == pool.capacity
        assert pool.free + pool.evictable == pool.capacity


def test_after_new_weights_nothing_of_the_old_ones_is_left(seed: int) -> None:
    cache, prompt = small_cache(), random_tokens(seed, 50)
    serve(cache, prompt)
    running = begin(cache, prompt)
    advance(cache, running, prompt, 50)
    cache.close(running, finished=False)
    cache.flush(keep_namespaces=[("weights", 1, "")])
    assert serve(cache, prompt, namespace=("weights", 1, "")).match.compressed_len == 0
    assert cache.stats().num_namespaces == 1
