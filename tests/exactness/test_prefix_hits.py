"""A prompt that finds its beginning in the cache gets the bits of one that finds nothing.

Every page boundary is tried, with its window (a hit) and without (a gap, or a replay that rebuilds the window).
"""

import random
from dataclasses import replace
from itertools import product

import pytest

from benthic.cache.geometry import CacheCapacity, CacheGeometry
from benthic.cache.pools import CachePools
from benthic.cache.work import CacheWork
from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.request import Request
from benthic.engine.sampling import SamplingParams
from benthic.models.transformer import Transformer
from tests.exactness.serving import Bits, alone, answers, assert_same, each_alone, ids, request, serve
from tests.exactness.shapes import SHAPES, cases, engine_config, model_of

PAGES = {16: 12, 128: 4}
"""Pages of the first prompt, by page size."""


@pytest.mark.parametrize("name", cases(SHAPES, ["pages of 16", "all kinds"]))
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


@pytest.mark.parametrize("name", cases(SHAPES, ["pages of 16"]))
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
    expected = each_alone(model, probes, page)
    for chance in (1.0, 0.3):
        engine = Engine(model, engine_config(name, max_num_seqs=4, prefill_chunk=2 * page - 1))
        assert_same(expected, serve(engine, probes, rng, chance))


TEXT = ids(random.Random(0), 1300)


def request_of(name: str, prompt: tuple[int, ...], max_tokens: int = 6, **fields: object) -> Request:
    params = SamplingParams(max_tokens=max_tokens, seed=len(prompt), logprobs=1, ignore_eos=True)
    return Request(request_id=name, prompt_ids=prompt, params=params, **fields)  # type: ignore[arg-type]


def engine_of(model: Transformer, capacity: CacheCapacity | None = None, **settings: object) -> Engine:
    config = EngineConfig(max_num_seqs=4, cache_bytes=1 << 26, debug_checks=True, **settings)  # type: ignore[arg-type]
    return Engine(model, config, capacity=capacity)


@pytest.mark.parametrize("drafter", ["none", "mtp"])
def test_replay_rebuilds_the_windows_that_nobody_kept(small_model: Transformer, drafter: str) -> None:
    engine = engine_of(small_model, retention="none", drafter=drafter)
    requests = [request_of("cold", TEXT[:1200]), request_of("warm", (*TEXT[:1100], 9, 9))]
    # One after the other: a pass of a device may hold both prompts, and the second would find nothing.
    finals = {name: final for one in requests for name, final in serve(engine, [one]).items()}
    report = finals["warm"].report
    assert report is not None
    # 8 pages are cached and no window: 5 layers (4 without drafts) of 127 rows and one more are computed again.
    assert (report.compressed_match, report.usable_match) == (1024, 0)
    assert report.replayed == (4 if drafter == "none" else 5) * 127 + 1
    assert answers(finals) == each_alone(small_model, requests)


def test_prompts_that_lost_their_pages_to_others_are_computed_again(small_model: Transformer) -> None:
    capacity = CacheCapacity(num_pages=8, num_windows=14, num_rows=4, max_len=900)
    engine = engine_of(small_model, capacity, admission_headroom=0)
    rng = random.Random(4)
    prompts = [TEXT[start : start + 400] for start in (0, 100, 200, 300)]
    requests = [request_of(f"r{i}", rng.choice(prompts)) for i in range(14)]
    assert answers(serve(engine, requests)) == each_alone(small_model, requests)


@pytest.mark.parametrize(
    ("prompt_len", "drafter"),
    cases(
        product((1, 2, 127, 128, 129, 260), ("none", "mtp")), [(1, "mtp"), (127, "none"), (128, "mtp"), (129, "none")]
    ),
)
def test_forks_of_a_prompt_of_any_length_answer_as_if_alone(
    small_model: Transformer, prompt_len: int, drafter: str
) -> None:
    engine = engine_of(small_model, drafter=drafter)
    leader = request_of("leader", TEXT[:prompt_len], max_tokens=20)
    forks = [
        Request(
            request_id=f"fork {seed}",
            prompt_ids=leader.prompt_ids,
            params=SamplingParams(max_tokens=20, seed=seed, logprobs=1, ignore_eos=True),
            fork_of="leader",
        )
        for seed in range(3)
    ]
    finals = serve(engine, [leader, *forks])
    assert answers(finals) == each_alone(small_model, [leader, *forks])
    assert engine.stats().used_pages == 0


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
