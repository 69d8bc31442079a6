"""What a request gets is what it would get alone, for models and pages of every shape: batches, rows, chunks, forks."""

import random
from dataclasses import replace
from itertools import product

import pytest
import torch

from benthic.cache.geometry import CacheCapacity
from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.request import Request
from benthic.engine.sampling import SamplingParams
from benthic.engine.scoring import packed_logprobs
from benthic.models.checkpoint import dummy_model, load_model
from benthic.models.transformer import Transformer
from tests.exactness.places import options
from tests.exactness.serving import (
    Bits,
    answers,
    assert_same,
    each_alone,
    ids,
    random_request,
    random_requests,
    request,
    serve,
)
from tests.exactness.shapes import SHAPES, cases, engine_config, model_of

SCHEDULES = {
    "wide": {"max_num_seqs": 16, "max_batched_tokens": 2048},
    "small chunks": {"max_num_seqs": 5, "max_batched_tokens": 37, "prefill_chunk": 11},
    "odd chunks": {"max_num_seqs": 3, "max_batched_tokens": 131, "prefill_chunk": 65},
    "one token a pass": {"max_num_seqs": 1, "max_batched_tokens": 2, "prefill_chunk": 1},
    "one pass ahead": {"max_num_seqs": 4, "max_batched_tokens": 90, "overlap_steps": 1},
    "no cache": {"max_num_seqs": 4, "prefix_cache": False, "overlap_steps": 1},
}


def expected_of(name: str, requests: list[Request]) -> dict[str, Bits]:
    return each_alone(model_of(name), requests, SHAPES[name].page_size)


ANY_SHAPE = [("all kinds", "one pass ahead"), *(("pages of 16", s) for s in SCHEDULES)]


@pytest.mark.parametrize(("name", "schedule"), cases(product(SHAPES, SCHEDULES), ANY_SHAPE))
def test_any_batch_order_chunking_and_arrival_gives_the_bits_of_the_request_alone(name: str, schedule: str) -> None:
    rng = random.Random(name + schedule)
    is_slow = schedule == "one token a pass"
    requests = [random_request(rng, f"r{i}", longest=130 if is_slow else 400) for i in range(2 if is_slow else 4)]
    engine = Engine(model_of(name), engine_config(name, **SCHEDULES[schedule]))
    assert_same(expected_of(name, requests), serve(engine, requests, rng, 0.4))


@pytest.mark.parametrize("batch", cases([2, 3, 7, 8, 16, 33, 64], [2, 7, 64]))
def test_a_request_does_not_see_how_many_run_beside_it(batch: int) -> None:
    name = "window of no whole pages"
    rng = random.Random(batch)
    probe = request("probe", ids(rng, 150))
    others = [random_request(rng, f"r{i}", longest=129, max_tokens=14) for i in range(batch - 1)]
    engine = Engine(model_of(name), engine_config(name, max_num_seqs=64, debug_checks=False))
    requests = [*others[: batch // 2], probe, *others[batch // 2 :]]
    assert_same(expected_of(name, [probe]), serve(engine, requests))


@pytest.mark.parametrize("place", cases(range(6), [0, 3, 5]))
@pytest.mark.parametrize("name", cases(SHAPES, ["pages of 16"]))
def test_a_request_does_not_see_which_row_it_has(name: str, place: int) -> None:
    rng = random.Random(place)
    probe = request("probe", ids(random.Random(1), 140))
    requests = [random_request(rng, f"r{i}", longest=65) for i in range(6)]
    requests[place] = probe
    engine = Engine(model_of(name), engine_config(name, max_num_seqs=6))
    serve(engine, [random_request(rng, f"before{i}", longest=65) for i in range(place)])
    assert_same(expected_of(name, [probe]), serve(engine, requests))


@pytest.mark.parametrize("chunk", cases([16, 64, 100, 128, 257, 512, 1024], [16, 100, 1024]))
@pytest.mark.parametrize("name", cases(SHAPES, ["window of no whole pages"]))
def test_a_long_prompt_does_not_see_its_chunks(name: str, chunk: int) -> None:
    probe = request("probe", ids(random.Random(2), 700), max_tokens=8)
    beside = request("beside", ids(random.Random(3), 20), max_tokens=60)
    engine = Engine(model_of(name), engine_config(name, prefill_chunk=chunk, max_batched_tokens=max(chunk, 80)))
    assert_same(expected_of(name, [probe, beside]), serve(engine, [beside, probe]))


@pytest.mark.parametrize("chunk", cases([16, 1000, 4096, 8192], [8192]))
def test_a_prompt_of_8300_tokens_does_not_see_its_chunks(chunk: int) -> None:
    config = replace(SHAPES["all kinds"].config, max_position_embeddings=16384)
    model = dummy_model(config, seed=1, **options()).freeze()
    probe = request("probe", ids(random.Random(2), 8300), max_tokens=4)
    engine = Engine(model, EngineConfig(prefill_chunk=chunk, max_batched_tokens=max(chunk, 80), cache_bytes=1 << 28))
    whole = Engine(model, EngineConfig(max_num_seqs=1, max_batched_tokens=8400, cache_bytes=1 << 28))
    assert_same({"probe": Bits.of(serve(whole, [probe])["probe"])}, serve(engine, [probe]))


@pytest.mark.parametrize("name", cases(SHAPES, ["pages of 16"]))
@pytest.mark.parametrize("overlap_steps", [0, 1])
def test_retracted_requests_go_on_with_the_same_bits(name: str, overlap_steps: int) -> None:
    """Two prompts fill all pages; the answer of each needs one more."""
    rng = random.Random(5)
    page = SHAPES[name].page_size
    length = 256 - 5
    requests = [request(f"r{i}", ids(rng, length), max_tokens=12, seed=i, logprobs=0) for i in range(4)]
    capacity = CacheCapacity(num_pages=2 * 256 // page, num_windows=60, num_rows=4, max_len=256 + page)
    config = engine_config(name, max_num_seqs=4, admission_headroom=0, overlap_steps=overlap_steps)
    engine = Engine(model_of(name), config, capacity=capacity)
    finals = serve(engine, requests)
    assert sum(final.report.num_retractions for final in finals.values() if final.report is not None) > 0
    assert_same(expected_of(name, requests), finals)


@pytest.mark.parametrize("name", cases(SHAPES, ["window of no whole pages"]))
def test_scores_of_whole_sequences_equal_the_engines_logprobs(name: str) -> None:
    """The trainer's path: packed, without a cache."""
    requests = [random_request(random.Random(seed), f"r{seed}") for seed in range(4)]
    engine = Engine(model_of(name), engine_config(name, **SCHEDULES["odd chunks"]))
    serve(engine, requests)
    finals = serve(engine, requests)  # from prefix hits
    for one in requests:
        final = finals[one.request_id]
        assert final.logprobs is not None
        scored = packed_logprobs(model_of(name), [*one.prompt_ids, *final.token_ids])
        assert torch.equal(scored[final.prompt_len - 1 :], torch.tensor([entry.chosen for entry in final.logprobs]))


@pytest.mark.parametrize("name", cases(SHAPES, ["pages of 16"]))
@pytest.mark.parametrize("overlap_steps", cases([0, 1], [1]))
def test_forks_of_one_prompt_get_the_bits_of_separate_requests(name: str, overlap_steps: int) -> None:
    """Lengths that end inside a page, inside a block and on a boundary: a fork copies what is not yet shared."""
    for length in (33, 128):
        prompt = ids(random.Random(length), length)
        leader = request("f0", prompt, max_tokens=20, seed=100)
        forks = [
            Request(
                request_id=f"f{i}",
                prompt_ids=prompt,
                params=request("", prompt, max_tokens=20, seed=100 + i).params,
                fork_of="f0",
            )
            for i in range(1, 4)
        ]
        engine = Engine(model_of(name), engine_config(name, max_num_seqs=4, overlap_steps=overlap_steps))
        assert_same(expected_of(name, [leader, *forks]), serve(engine, [leader, *forks]))


@pytest.mark.parametrize("drafter", cases(["none", "mtp", "ngram"], ["mtp"]))
def test_the_bundled_model_answers_the_same_alone_and_in_a_crowd(drafter: str) -> None:
    model = load_model("tiny", **options()).freeze()
    rng = random.Random(5)
    size = model.config.vocab_size
    trunk = ids(rng, 200, size)
    requests = [request(f"r{i}", trunk[: rng.randrange(1, 200)] + ids(rng, 9, size), seed=i) for i in range(3)]
    expected = each_alone(model, requests)
    engine = Engine(model, EngineConfig(drafter=drafter, prefill_chunk=70, cache_bytes=1 << 27))  # type: ignore[arg-type]
    assert_same(expected, serve(engine, requests, rng, 0.3))
    assert_same(expected, serve(engine, requests, rng, 0.3))


def test_identical_prompts_at_once_get_identical_answers(small_model: Transformer) -> None:
    """B173: identical requests in one pass, cold, share what they write and each get their own answer."""
    [one] = random_requests(random.Random(8), 1)
    requests = [Request(request_id=str(i), prompt_ids=one.prompt_ids, params=one.params) for i in range(8)]
    finals = serve(Engine(small_model), requests)
    assert len(set(answers(finals).values())) == 1


def test_a_neighbour_with_nan_logits_fails_alone_and_leaves_nothing_behind(own_model: Transformer) -> None:
    rng = random.Random(11)
    healthy = random_requests(rng, 4, longest=200)
    expected = each_alone(own_model, healthy)
    poison = 7
    with torch.no_grad():
        own_model.embed.weight[poison] = float("nan")
    healthy = [r for r in healthy if poison not in r.prompt_ids and poison not in expected[r.request_id][0]]
    assert len(healthy) >= 2
    sick = [
        Request(request_id=f"sick{i}", prompt_ids=(5, poison, 9) * 60, params=SamplingParams(max_tokens=4))
        for i in range(2)
    ]
    engine = Engine(own_model, EngineConfig(max_num_seqs=3, max_batched_tokens=150, debug_checks=True))
    finals = serve(engine, [sick[0], *healthy[:1], sick[1], *healthy[1:]])
    for one in sick:
        assert finals[one.request_id].error_kind == "numbers"
    assert_same({one.request_id: expected[one.request_id] for one in healthy}, finals)


def test_a_changed_thread_count_is_put_right_before_the_next_pass(cpu_only: None, small_model: Transformer) -> None:
    requests = random_requests(random.Random(3), 2, longest=64)
    engine = Engine(small_model, EngineConfig(max_num_seqs=2))
    torch.set_num_threads(2)
    finals = serve(engine, requests)
    assert torch.get_num_threads() == 1
    assert answers(finals) == each_alone(small_model, requests)
