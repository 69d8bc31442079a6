"""A prompt that finds its beginning in the cache gets the bits of one that finds nothing.

Every page boundary is tried, with its window (a hit) and without (a gap, or a replay that rebuilds the window).
"""

import random
from dataclasses import replace

import pytest

from benthic.cache.geometry import CacheGeometry
from benthic.cache.pools import CachePools
from benthic.cache.work import CacheWork
from benthic.engine.engine import Engine
from tests.exactness.probes import Bits, alone, assert_same, ids, request, serve
from tests.exactness.shapes import SHAPES, cases, engine_config, model_of

PAGES = {16: 12, 128: 4}
"""Pages of the first prompt, by page size."""


@pytest.mark.parametrize("name", SHAPES)
def test_a_hit_at_every_page_boundary_gives_the_bits_of_a_cold_prompt(name: str) -> None:
    model, page = model_of(name), SHAPES[name].page_size
    rng = random.Random(name)
    first = ids(rng, PAGES[page] * page + 3)
    engine = Engine(model, engine_config(name, retention="every_page"))
    serve(engine, [request("first", first, max_tokens=2)])
    for boundary in range(page, PAGES[page] * page + 1, page):
        probe = request(
            f"to {boundary}", first[:boundary] + ids(rng, rng.choice((1, 2, 5, page, page + 3))), max_tokens=6
        )
        finals = serve(engine, [probe])
        report = finals[probe.request_id].report
        assert report is not None
        assert report.usable_match == boundary, report
        assert_same({probe.request_id: alone(model, probe, page)}, finals)


@pytest.mark.parametrize("name", cases(SHAPES, ["pages of 16"]))
@pytest.mark.parametrize("rest", [0, 1, 2])
def test_a_prompt_that_is_cached_whole_still_computes_its_last_token(name: str, rest: int) -> None:
    model, page = model_of(name), SHAPES[name].page_size
    prompt = ids(random.Random(rest), 2 * page + rest)
    probe = request("probe", prompt)
    expected = {"probe": alone(model, probe, page)}
    engine = Engine(model, engine_config(name, retention="every_page"))
    for _ in range(3):
        finals = serve(engine, [probe])
        assert_same(expected, finals)
    report = finals["probe"].report
    assert report is not None
    assert report.usable_match == (len(prompt) - 1) // page * page


@pytest.mark.parametrize("name", cases(SHAPES, ["pages of 16", "heavy, short window"]))
@pytest.mark.parametrize("retention", cases(["none", "boundaries", "interval"], ["none", "boundaries"]))
def test_where_windows_are_gone_the_gap_or_the_replay_gives_the_same_bits(name: str, retention: str) -> None:
    model, page = model_of(name), SHAPES[name].page_size
    rng = random.Random(name + retention)
    first = ids(rng, PAGES[page] * page + 5)
    engine = Engine(model, engine_config(name, retention=retention, prefill_chunk=page + 3))
    serve(engine, [request("first", first)])
    replayed = 0
    for boundary in range(page, PAGES[page] * page + 1, page):
        probe = request(f"to {boundary}", first[:boundary] + ids(rng, 4), max_tokens=6)
        finals = serve(engine, [probe])
        report = finals[probe.request_id].report
        assert report is not None
        assert report.usable_match <= report.compressed_match == boundary, report
        replayed += report.replayed
        assert_same({probe.request_id: alone(model, probe, page)}, finals)
    if retention == "none" and SHAPES[name].replay_len < (PAGES[page] - 1) * page:
        assert replayed > 0, "no replay happened, so none was tested"


@pytest.mark.parametrize("name", cases(SHAPES, ["pages of 16"]))
def test_the_turns_of_a_conversation_get_the_bits_of_its_whole_text(name: str) -> None:
    """Each prompt is the one before it, its answer, and something new: hits end inside generated text."""
    model, page = model_of(name), SHAPES[name].page_size
    rng = random.Random(name)
    engine = Engine(model, engine_config(name))
    history, reused = ids(rng, page + 7), 0
    for turn in range(5):
        probe = request(f"turn {turn}", history, max_tokens=page // 2 + 5, seed=turn)
        finals = serve(engine, [probe])
        assert_same({probe.request_id: alone(model, probe, page)}, finals)
        report = finals[probe.request_id].report
        assert report is not None
        reused += report.usable_match
        history = (*history, *finals[probe.request_id].token_ids, *ids(rng, 9))
    assert reused >= 3 * page


@pytest.mark.parametrize("name", cases(SHAPES, ["pages of 16"]))
def test_requests_of_another_salt_find_nothing_and_get_the_same_bits(name: str) -> None:
    model, page = model_of(name), SHAPES[name].page_size
    probe = request("probe", ids(random.Random(3), 3 * page))
    engine = Engine(model, engine_config(name, retention="every_page"))
    finals = [serve(engine, [replace(probe, cache_salt=salt)])["probe"] for salt in ("a", "b", "a")]
    assert [final.report is not None and final.report.usable_match > 0 for final in finals] == [False, False, True]
    assert len({Bits.of(final) for final in finals}) == 1


@pytest.mark.parametrize("name", cases(SHAPES, ["pages of 16"]))
def test_prompts_that_share_pages_at_the_same_time_do_not_disturb_each_other(name: str) -> None:
    model, page = model_of(name), SHAPES[name].page_size
    rng = random.Random(name)
    trunk = ids(rng, 3 * page)
    probes = [
        request(f"r{i}", trunk[: rng.randrange(1, 3 * page)] + ids(rng, rng.randrange(1, page)), seed=i)
        for i in range(6)
    ]
    expected = {probe.request_id: alone(model, probe, page) for probe in probes}
    for chance in (1.0, 0.3):
        engine = Engine(model, engine_config(name, max_num_seqs=4, prefill_chunk=2 * page - 1))
        assert_same(expected, serve(engine, probes, rng, chance))


def differing_hits(name: str, retention: str) -> int:
    """Prompts whose answer after a hit is not the one of a cold prompt."""
    model, page = model_of(name), SHAPES[name].page_size
    rng = random.Random(name)
    first = ids(rng, 6 * page + 3)
    engine = Engine(model, engine_config(name, retention=retention, debug_checks=False))
    serve(engine, [request("first", first, max_tokens=2)])
    count = 0
    for boundary in range(4 * page, 7 * page, page):
        probe = request(f"to {boundary}", first[:boundary] + ids(rng, 5), max_tokens=6)
        found = Bits.of(serve(engine, [probe])[probe.request_id])
        count += found != alone(model, probe, page)
    return count


def test_a_hit_without_its_boundary_snapshot_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the first block behind a boundary reads four rows of the page before it."""
    assert differing_hits("pages of 16", "every_page") == 0
    apply = CachePools.apply

    def apply_without_restores(pools: CachePools, work: CacheWork) -> None:
        apply(pools, replace(work, restores=()))

    monkeypatch.setattr(CachePools, "apply", apply_without_restores)
    assert differing_hits("pages of 16", "every_page") > 0


def test_a_replay_of_one_window_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: one window of tokens rebuilds the first layer's window and no other one's."""
    assert differing_hits("pages of 16", "none") == 0
    monkeypatch.setattr(CacheGeometry, "replay_len", property(lambda shape: shape.window))
    assert differing_hits("pages of 16", "none") > 0
