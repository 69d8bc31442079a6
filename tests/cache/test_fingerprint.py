"""Random scripts against the brute-force evaluator; then one guard is taken away at a time, and must be missed."""

from collections.abc import Callable

import numpy as np
import pytest

from benthic.cache import paged_context
from benthic.cache.geometry import CacheGeometry
from benthic.cache.manager import CacheManager
from benthic.cache.paged_context import PagedContext
from benthic.cache.pools import CachePools
from benthic.cache.row import Row
from benthic.cache.trie import PageTrie
from tests.cache import scripts
from tests.cache.fingerprint import FingerprintConfig, Ints, config, evaluate, generate, latent_config
from tests.cache.scripts import Script, latent_options_of, options_of, run_scripts

A_TEST = 100
BY_DEFAULT, AT_NIGHT = range(0, 500, A_TEST), range(500, 1000, A_TEST)


def least_ring_len(geometry: CacheGeometry, ratio: int) -> int:
    return geometry.min_ring_len(ratio)


@pytest.mark.parametrize("first", [*BY_DEFAULT, *(pytest.param(n, marks=pytest.mark.nightly) for n in AT_NIGHT)])
def test_random_scripts_leave_in_the_cache_what_brute_force_computes(first: int) -> None:
    counts = run_scripts(range(first, first + A_TEST))
    for event in ("hit", "gap", "replay", "fork", "retract", "update"):
        assert counts[event] >= 5, counts  # a script that never gets there proves nothing
    assert counts["numbers"] > 100_000, counts


@pytest.mark.parametrize("family", ["V2", "V3", "V3.2"])
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(A_TEST, 500, A_TEST))]
)
def test_random_scripts_without_windows_leave_what_brute_force_computes(family: str, first: int) -> None:
    counts = run_scripts(range(first, first + A_TEST), lambda seed: latent_options_of(seed, family))
    for event in ("hit", "fork", "retract", "update"):
        assert counts[event] >= 5, counts
    assert counts["gap"] == counts["replay"] == 0, "what is cached is always usable"
    assert counts["numbers"] > 100_000, counts


def test_the_least_ring_is_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CacheGeometry, "ring_len", least_ring_len)
    run_scripts(range(2000, 2025))


def without_a_row(geometry: CacheGeometry, ratio: int) -> int:
    return geometry.min_ring_len(ratio) - 1


def uncommitted(manager: CacheManager, row: Row) -> int:
    return row.allocated_len // manager.geometry.page_size


def nothing_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    build = scripts.build_rows
    monkeypatch.setattr(scripts, "build_rows", lambda runs, min_rows, **ignored: build(runs, min_rows))


def writes_over_shared_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row does not get its own page behind what it shares, but writes into the last shared one."""
    slots = PagedContext._entry_places

    def one_page_early(context: PagedContext, pages: Ints, sequence: Ints, index: Ints, ratio: int) -> Ints:
        a_page = context._pools.geometry.entries_per_page(ratio)
        return slots(context, pages, sequence, np.maximum(index - a_page, 0), ratio)

    monkeypatch.setattr(PagedContext, "_entry_places", one_page_early)


MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a ring is one row short": lambda patch: patch.setattr(CacheGeometry, "ring_len", without_a_row),
    "pages are published before they are committed": lambda patch: patch.setattr(
        CacheManager, "_num_shareable", uncommitted
    ),
    "snapshots are not restored": lambda patch: patch.setattr(CachePools, "_restore", lambda pools, restores: None),
    "snapshots are not written": lambda patch: patch.setattr(
        paged_context, "snapshot_of", lambda raw, kind: raw[:, : kind.snapshot] * 0
    ),
    "a row writes into shared pages": writes_over_shared_pages,
    "rows of a replay write entries": nothing_is_stored,
    "a tombstone passes for a window": lambda patch: patch.setattr(
        PageTrie, "_has_window", staticmethod(lambda node: True)
    ),
    "fork copies are not made": lambda patch: patch.setattr("benthic.cache.pools._copy", lambda *blocks: None),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_scripts_notice_when(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS[name](monkeypatch)
    for seed in range(3000, 3300):
        try:
            Script(seed, options_of(seed)).run()
        except AssertionError:
            return
    pytest.fail(f"300 scripts did not notice that {name}")


@pytest.mark.parametrize(
    "name",
    ["pages are published before they are committed", "a row writes into shared pages", "fork copies are not made"],
)
def test_scripts_without_windows_notice_when(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS[name](monkeypatch)
    for seed in range(3000, 3300):
        try:
            Script(seed, latent_options_of(seed, "V3.2")).run()
        except AssertionError:
            return
    pytest.fail(f"300 scripts did not notice that {name}")


@pytest.mark.parametrize("sizes", [config(), latent_config("V3.2")], ids=["V4", "V3.2"])
def test_the_evaluator_is_causal(sizes: FingerprintConfig) -> None:
    """A row depends on its prefix: longer sequences agree with it, and any earlier change shows."""
    tokens = [7 * i % 61 for i in range(90)]
    whole = evaluate(sizes, tokens)
    for length in (1, 2, 15, 16, 17, 64):
        assert (evaluate(sizes, tokens[:length]).value == whole.value[:length]).all()
    for changed in (0, 3, 40, 88):
        other = [*tokens[:changed], tokens[changed] + 1, *tokens[changed + 1 :]]
        differs = evaluate(sizes, other).value != whole.value
        assert not differs[:changed].any()
        # Within the window at once; further on as soon as an entry holds it.
        assert differs[changed : changed + 8].all()
        assert differs[-1]


def test_generation_depends_on_every_token_of_the_prompt() -> None:
    sizes = config()
    prompt = [3 * i % 61 for i in range(50)]
    first = generate(sizes, prompt, 12)
    assert generate(sizes, prompt, 12) == first
    assert all(
        generate(sizes, [*prompt[:i], 60, *prompt[i + 1 :]], 12) != first for i in (0, 20, 48) if prompt[i] != 60
    )
    assert generate(sizes, prompt, 12, version=1) != first
