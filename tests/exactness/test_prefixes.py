"""A cached prefix is worth its computation to the bit: at every boundary, after eviction, by replay, by fork."""

import random

import pytest

from benthic.cache.geometry import CacheCapacity
from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.request import Request
from benthic.engine.sampling import SamplingParams
from benthic.models.transformer import Transformer
from tests.exactness.serving import alone, answers, run

TEXT = tuple(random.Random(0).randrange(2, 512) for _ in range(1300))


def request_of(name: str, prompt: tuple[int, ...], max_tokens: int = 6, **fields: object) -> Request:
    params = SamplingParams(max_tokens=max_tokens, seed=len(prompt), logprobs=1, ignore_eos=True)
    return Request(request_id=name, prompt_ids=prompt, params=params, **fields)  # type: ignore[arg-type]


def engine_of(model: Transformer, capacity: CacheCapacity | None = None, **settings: object) -> Engine:
    config = EngineConfig(max_num_seqs=4, cache_bytes=1 << 26, debug_checks=True, **settings)  # type: ignore[arg-type]
    return Engine(model, config, capacity=capacity)


@pytest.mark.parametrize("drafter", ["none", "mtp"])
def test_a_hit_at_every_page_boundary_gives_the_cold_answer(small_model: Transformer, drafter: str) -> None:
    engine = engine_of(small_model, retention="every_page", drafter=drafter)
    run(engine, [request_of("first", TEXT[:700])])
    # Each prompt leaves the first one's text at another boundary or beside it.
    lengths = [length for end in range(128, 641, 128) for length in (end - 1, end, end + 1)]
    requests = [request_of(f"r{length}", (*TEXT[:length], 3, 5, 7)) for length in lengths]
    finals = run(engine, requests)
    for length in lengths:
        assert finals[f"r{length}"].cached_len == length // 128 * 128
    assert answers(finals) == alone(small_model, requests)


@pytest.mark.parametrize("retention", ["boundaries", "interval", "every_page", "none"])
def test_every_retention_gives_the_cold_answers(small_model: Transformer, retention: str) -> None:
    engine = engine_of(small_model, retention=retention, retention_interval=256)
    requests = [request_of(f"r{i}", (*TEXT[:length], i)) for i, length in enumerate((600, 300, 450, 600, 130, 520))]
    assert answers(run(engine, requests)) == alone(small_model, requests)


@pytest.mark.parametrize("drafter", ["none", "mtp"])
def test_replay_rebuilds_the_windows_that_nobody_kept(small_model: Transformer, drafter: str) -> None:
    engine = engine_of(small_model, retention="none", drafter=drafter)
    requests = [request_of("cold", TEXT[:1200]), request_of("warm", (*TEXT[:1100], 9, 9))]
    finals = run(engine, requests)
    report = finals["warm"].report
    assert report is not None
    # 8 pages are cached and no window: 5 layers (4 without drafts) of 127 rows and one more are computed again.
    assert (report.compressed_match, report.usable_match) == (1024, 0)
    assert report.replayed == (4 if drafter == "none" else 5) * 127 + 1
    assert answers(finals) == alone(small_model, requests)


def test_prompts_that_lost_their_pages_to_others_are_computed_again(small_model: Transformer) -> None:
    capacity = CacheCapacity(num_pages=8, num_windows=14, num_rows=4, max_len=900)
    engine = engine_of(small_model, capacity, admission_headroom=0)
    rng = random.Random(4)
    prompts = [TEXT[start : start + 400] for start in (0, 100, 200, 300)]
    requests = [request_of(f"r{i}", rng.choice(prompts)) for i in range(14)]
    assert answers(run(engine, requests)) == alone(small_model, requests)


@pytest.mark.parametrize("prompt_len", [1, 2, 127, 128, 129, 260])
@pytest.mark.parametrize("drafter", ["none", "mtp"])
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
    for request in (leader, *forks):
        engine.add(request)
    finals = run(engine, [])
    assert answers(finals) == alone(small_model, [leader, *forks])
    assert engine.stats().used_pages == 0


def test_a_salt_keeps_prefixes_apart(small_model: Transformer) -> None:
    engine = engine_of(small_model)
    run(engine, [request_of("mine", TEXT[:400], cache_salt="me")])
    finals = run(engine, [request_of("theirs", TEXT[:400]), request_of("mine again", TEXT[:400], cache_salt="me")])
    assert finals["theirs"].cached_len == 0
    assert finals["mine again"].cached_len > 0


def test_a_request_may_leave_the_cache_alone(small_model: Transformer) -> None:
    engine = engine_of(small_model)
    run(engine, [request_of("a", TEXT[:400])])
    assert run(engine, [request_of("b", TEXT[:400], use_cache=False)])["b"].cached_len == 0


def test_a_longer_conversation_goes_on_from_its_last_answer(small_model: Transformer) -> None:
    engine = engine_of(small_model)
    prompt: tuple[int, ...] = TEXT[:200]
    previous: tuple[int, ...] = ()
    for turn in range(4):
        request = request_of(f"turn {turn}", prompt, max_tokens=70)
        final = run(engine, [request])[request.request_id]
        assert final.cached_len >= len(previous) // 128 * 128 - 128
        assert answers({request.request_id: final}) == alone(small_model, [request])
        previous = (*prompt, *final.token_ids)
        prompt = (*previous, *TEXT[turn * 10 : turn * 10 + 30])
