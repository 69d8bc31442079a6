"""Random lives of requests keep every law of the cache, and each guard is needed: without it such a life fails."""

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from benthic.cache.ids import Fence
from benthic.cache.manager import CacheManager
from benthic.cache.trie import PageTrie
from benthic.cache.work_queue import WorkQueue
from tests.cache.cache_model import CacheModel

OFTEN = ["launch"] * 8 + ["land"] * 8 + ["open"] * 5 + ["fork", "twin", "close"] * 2 + ["resume", "squeeze", "race"]
SELDOM = ["drain", "flush", "flush", "update_weights"]
WINDOWED = {"page of two windows": (16, 8), "page of one window": (16, 16), "window of two pages": (16, 24)}
NO_WINDOWS = (16, 0)
GEOMETRIES = {**WINDOWED, "no windows": NO_WINDOWS}


class CacheMachine(RuleBasedStateMachine):
    """The operations of a model, chosen and shrunk by hypothesis; the laws are asserted after each."""

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.data = data
        page_size, window = list(GEOMETRIES.values())[self.choose(0, 3)]
        self.model = CacheModel(self.choose, page_size=page_size, window=window)

    @rule(data=st.data(), operation=st.sampled_from(OFTEN + SELDOM))
    def step(self, data: st.DataObject, operation: str) -> None:
        self.data = data
        getattr(self.model, operation)()
        self.model.check()

    def choose(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))


CacheMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=50)
TestCacheMachine = CacheMachine.TestCase


def live(seed: int, num_steps: int, page_size: int, window: int) -> CacheModel:
    """A random life."""
    rng = random.Random(seed)
    model = CacheModel(rng.randint, page_size=page_size, window=window)
    for _ in range(num_steps):
        operation = rng.choice(SELDOM if rng.random() < 0.03 else OFTEN)
        getattr(model, operation)()
        model.check()
    return model


def live_often(num_lives: int, num_steps: int, seed: int, geometries: Sequence[tuple[int, int]]) -> None:
    for i in range(num_lives):
        live(seed + i, num_steps, *geometries[i % len(geometries)])


@pytest.mark.parametrize(("page_size", "window"), GEOMETRIES.values(), ids=GEOMETRIES.keys())
def test_random_lives_keep_every_law(page_size: int, window: int, seed: int) -> None:
    models = [live(seed + i, 250, page_size, window) for i in range(6)]
    counts = [model.manager.stats().counts for model in models]
    # Laws over an idle cache would prove nothing.
    for name in ("usable_len", "num_duplicates", "num_evicted_pages"):
        assert sum(getattr(count, name) for count in counts) > 0, name
    for name in ("num_evicted_windows", "num_replays"):
        assert (sum(getattr(count, name) for count in counts) > 0) == (window > 0), name
    assert window or all(count.usable_len == count.compressed_len for count in counts)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_many_random_lives_keep_every_law(seed: int) -> None:
    num_lives, num_steps = 400, 500
    live_often(num_lives, num_steps, seed, list(GEOMETRIES.values()))
    print(f"\n{num_lives * num_steps} steps of {num_lives} lives kept every law")


def run_now(fence: Fence, action: Callable[[], None]) -> None:
    action()


# Guard removed -> (owner, name, what stands in its place).
MUTATIONS: dict[str, tuple[type, str, object]] = {
    "a locked page is not evicted": (
        PageTrie,
        "_may_evict_page",
        staticmethod(lambda node: not node.children and node.page != 0),
    ),
    "a locked window is not taken away": (
        PageTrie,
        "_may_evict_window",
        staticmethod(lambda node: node.window != 0),
    ),
    "a tombstone is no place to go on from": (PageTrie, "_has_window", staticmethod(lambda node: True)),
    "only committed pages are shared": (
        CacheManager,
        "_num_shareable",
        lambda self, row: row.allocated_len // self.geometry.page_size,
    ),
    "what a pass may read waits for its end": (Fence, "run_after", run_now),
    "what a queued copy reads waits for the copy": (WorkQueue, "_hold_fence", lambda self: None),
    "a page is cleared for its new owner": (WorkQueue, "add_page", lambda self, page: None),
    "a window is cleared for its new owner": (WorkQueue, "add_window", lambda self, window: None),
    "only exact windows are shared": (CacheManager, "_is_exact", lambda self, row, page: True),
}


@pytest.mark.parametrize("guard", MUTATIONS)
def test_without_a_guard_a_law_is_broken(guard: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, replacement = MUTATIONS[guard]
    monkeypatch.setattr(owner, name, replacement)
    with pytest.raises(AssertionError):
        live_often(60, 250, seed, list(WINDOWED.values()))


@pytest.mark.parametrize("guard", [guard for guard in MUTATIONS if "window" not in guard and "tombstone" not in guard])
def test_without_a_guard_a_law_is_broken_where_there_are_no_windows(
    guard: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, replacement = MUTATIONS[guard]
    monkeypatch.setattr(owner, name, replacement)
    with pytest.raises(AssertionError):
        live_often(60, 250, seed, [NO_WINDOWS])
