"""Replayed passes: the bits of planned ones, whatever is in them, and the cases that are not replayed."""

import random
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TypeVar

import numpy as np
import pytest
import torch

from benthic.cache.geometry import CacheCapacity
from benthic.cache.work import CacheWork
from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.graphs import CaptureRefused, EagerGraphs
from benthic.engine.pending import FinishedStep
from benthic.engine.plan import StepPlan
from benthic.engine.row_buckets import RowBuckets
from benthic.errors import ConfigError
from benthic.models.transformer import Transformer
from tests.exactness.families import CONFIGS, family_model
from tests.exactness.serving import Bits, alone, assert_same, each_alone, ids, random_requests, request, serve

T = TypeVar("T")
ROWS = (16, 40)


class CountingGraphs:
    """Records nothing and counts: how often something was recorded, and how often replayed."""

    def __init__(self) -> None:
        self.num_captured = self.num_replayed = self.num_forgotten = 0

    def forget(self) -> None:
        self.num_forgotten += 1

    def capture(self, run: Callable[[], T]) -> Callable[[], T]:
        self.num_captured += 1
        run()  # on trial, as real graphs do

        def replay() -> T:
            self.num_replayed += 1
            return run()

        return replay


def replaying(model: Transformer, graphs: object = None, **settings: object) -> Engine:
    given: dict[str, object] = {"graph_rows": ROWS, "max_num_seqs": 8, "cache_bytes": 1 << 27, "debug_checks": True}
    capacity = settings.pop("capacity", None)
    return Engine(
        model,
        EngineConfig(**{**given, **settings}),  # type: ignore[arg-type]
        graphs=EagerGraphs() if graphs is None else graphs,  # type: ignore[arg-type]
        capacity=capacity,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("seed", range(3))
def test_random_requests_get_the_bits_that_they_get_alone(small_model: Transformer, seed: int) -> None:
    """B171, B172: passes padded to a captured size, of requests of every length, keep the bits of planned ones."""
    rng = random.Random(seed)
    requests = random_requests(rng, 8)
    engine = replaying(small_model, prefill_chunk=40)
    finals = serve(engine, requests, rng, 0.4)
    assert_same(each_alone(small_model, requests), finals)
    assert engine.stats().num_replayed_steps > 3


@pytest.mark.parametrize("overlap_steps", [0, 1])
def test_a_token_in_flight_is_read_from_the_relay(small_model: Transformer, overlap_steps: int) -> None:
    rng = random.Random(5)
    requests = [request(f"r{n}", ids(rng, 3 + n), max_tokens=40) for n in range(5)]
    engine = replaying(small_model, overlap_steps=overlap_steps)
    assert_same(each_alone(small_model, requests), serve(engine, requests))
    stats = engine.stats()
    engine.close()
    assert stats.num_replayed_steps >= 39 and stats.num_steps - stats.num_replayed_steps < 8


@pytest.mark.parametrize(("drafter", "depth"), [("ngram", 4), ("mtp", 1), ("mtp", 3), ("mtp", 8)])
def test_verification_keeps_every_bit(small_model: Transformer, drafter: str, depth: int) -> None:
    few = tuple((token_id, 60.0) for token_id in (5, 6, 7))
    rng = random.Random(depth)
    prompts = [tuple(rng.choice(few)[0] for _ in range(length)) for length in (126, 20, 300)]
    requests = [
        request(f"r{n}", prompt, max_tokens=30, logit_bias=few, temperature=temperature)
        for n, (prompt, temperature) in enumerate(zip(prompts, (0.0, 0.5, 1.0), strict=True))
    ]
    requests.append(request("plain", prompts[0], max_tokens=30, temperature=0.0))
    engine = replaying(small_model, drafter=drafter, draft_len=depth, draft_adaptive=False)
    assert_same(each_alone(small_model, requests), serve(engine, requests))
    stats = engine.stats()
    assert stats.num_replayed_steps > 5 and stats.num_drafted > 10


@pytest.mark.parametrize("depth", [1, 4])
def test_the_captured_chain_guesses_as_the_drafter_does(small_model: Transformer, depth: int) -> None:
    rng = random.Random(depth)
    requests = [request(f"r{n}", ids(rng, 40 + n), max_tokens=60, temperature=n % 2 * 0.2) for n in range(3)]
    settings: dict[str, object] = {"drafter": "mtp", "draft_len": depth, "draft_adaptive": False}
    mine = replaying(small_model, **settings)
    theirs = Engine(small_model, EngineConfig(cache_bytes=1 << 27, **settings))  # type: ignore[arg-type]
    guessed = drafts_of(mine), drafts_of(theirs)
    assert_same({n: Bits.of(f) for n, f in serve(theirs, requests).items()}, serve(mine, requests))
    assert guessed[0] == guessed[1] and len(guessed[0]) > 40
    assert mine.stats().num_replayed_steps > 20


def drafts_of(engine: Engine) -> list[tuple[tuple[int, ...], ...]]:
    """What is guessed after each of the passes to come."""
    found, runner = list[tuple[tuple[int, ...], ...]](), engine._parts.runner
    launch = runner.launch

    def watched(plan: StepPlan, work: CacheWork, depths: Seq[int] = ()) -> FinishedStep:
        result = launch(plan, work, depths).result()
        if any(result.drafts):
            found.append(result.drafts)
        return FinishedStep(lambda: result)

    runner.launch = watched  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("drafter", ["none", "mtp"])
def test_cuts_are_drawn_by_the_replay_too(small_model: Transformer, drafter: str) -> None:
    rng, graphs = random.Random(7), CountingGraphs()
    cuts: list[dict[str, object]] = [{"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.5}, {}]
    requests = [request(f"r{n}", ids(rng, 30), max_tokens=20, temperature=1.2, **own) for n, own in enumerate(cuts)]
    engine = replaying(small_model, graphs, drafter=drafter)
    assert_same(each_alone(small_model, requests), serve(engine, requests))
    assert graphs.num_replayed >= 19


def test_retraction_and_cancelling_between_replays_change_no_answer(small_model: Transformer) -> None:
    rng = random.Random(9)
    requests = [request(f"r{n}", ids(rng, 60), max_tokens=90) for n in range(6)]
    engine = replaying(
        small_model,
        admission_headroom=0,
        capacity=CacheCapacity(num_pages=8, num_windows=16, num_rows=8, max_len=256),
    )
    for one in requests:
        engine.add(one)
    events = [event for _ in range(12) for event in engine.step()]
    engine.cancel("r0")
    finals = serve(engine, [])
    assert_same(each_alone(small_model, requests[1:]), {name: f for name, f in finals.items() if name != "r0"})
    assert engine.stats().num_retractions > 0 and events


def test_returned_routes_and_picks_are_those_of_planned_passes(small_model: Transformer) -> None:
    one = [request("r", ids(random.Random(2), 150), max_tokens=20, return_routes=True, return_picks=True)]
    settings: dict[str, object] = {"keep_routes": True, "keep_picks": True, "cache_bytes": 1 << 26}
    mine = serve(replaying(small_model, **settings), one)["r"].extras
    theirs = serve(Engine(small_model, EngineConfig(**settings)), one)["r"].extras  # type: ignore[arg-type]
    assert mine.routes is not None and mine.picks is not None
    assert theirs.routes is not None and theirs.picks is not None
    assert np.array_equal(mine.routes, theirs.routes) and np.array_equal(mine.picks, theirs.picks)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_keeps_its_bits(name: str) -> None:
    model, rng = family_model(name), random.Random(1)
    requests = [request(f"r{n}", ids(rng, 14 + n, 64), max_tokens=20) for n in range(3)]
    engine = replaying(model, page_size=16)
    finals = serve(engine, requests)
    assert_same({one.request_id: alone(model, one, 16) for one in requests}, finals)
    assert engine.stats().num_replayed_steps > 3


def test_new_weights_are_captured_anew(own_model: Transformer) -> None:
    graphs, rng = CountingGraphs(), random.Random(3)
    engine, one = replaying(own_model, graphs), request("r", ids(rng, 20), max_tokens=10)
    first = serve(engine, [one])["r"]
    num_captured = graphs.num_captured
    assert num_captured >= 1 and graphs.num_replayed >= 9
    state = {name: tensor * 1.5 for name, tensor in own_model.state_dict().items() if tensor.is_floating_point()}
    engine.update_weights({**own_model.state_dict(), **state})
    second = serve(engine, [one])["r"]
    assert graphs.num_captured == 2 * num_captured and graphs.num_forgotten == 1
    assert second.token_ids != first.token_ids
    assert_same({"r": alone(own_model, one)}, {"r": second})


class RefusingGraphs(EagerGraphs):
    """Records nothing."""

    def capture(self, run: Callable[[], T]) -> Callable[[], T]:
        run()
        raise CaptureRefused("a pass cannot be captured: it waits")


def test_what_cannot_be_captured_runs_piece_by_piece_and_is_counted_so(
    small_model: Transformer, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(3)
    requests = [request(f"r{n}", ids(rng, 30), max_tokens=20) for n in range(3)]
    engine = replaying(small_model, RefusingGraphs(), drafter="mtp")
    assert_same(each_alone(small_model, requests), serve(engine, requests))
    stats = engine.stats()
    assert stats.num_steps > 10 and stats.num_replayed_steps == 0
    assert "piece by piece" in caplog.text


def test_warming_up_captures_every_bucket_once_and_says_so(small_model: Transformer) -> None:
    graphs, said = CountingGraphs(), list[str]()
    engine = replaying(small_model, graphs)
    engine.warm_up(said.append)
    assert len(said) == 2 and "2 of 2" in said[-1]
    num_captured = graphs.num_captured
    assert num_captured == 2
    serve(engine, [request("r", ids(random.Random(0), 9), max_tokens=5, top_k=3)])
    assert graphs.num_captured == num_captured and graphs.num_replayed >= 4


@pytest.mark.parametrize("drafter", ["none", "mtp"])
def test_branches_that_run_last_and_write_in_place_keep_every_bit(small_model: Transformer, drafter: str) -> None:
    rng = random.Random(8)
    requests = [request(f"r{n}", ids(rng, 118 + n), max_tokens=30, temperature=0.0) for n in range(4)]
    engine = replaying(small_model, drafter=drafter)
    rows = engine._parts.runner._rows  # type: ignore[attr-defined]
    rows._in_place, rows._beside = True, lambda num_rows: lambda work: work
    if rows.drafts is not None:
        rows.drafts._in_place = True
    assert_same(each_alone(small_model, requests), serve(engine, requests))
    assert engine.stats().num_replayed_steps > 20


def test_what_is_run_on_trial_leaves_the_cache_as_it_was(small_model: Transformer) -> None:
    engine = replaying(small_model, CountingGraphs())
    serve(engine, [request("r", ids(random.Random(0), 150), max_tokens=5)])
    pools = engine._parts.runner._pools  # type: ignore[attr-defined]
    before = [tensor.clone() for tensor in pools._tensors()]
    engine._parts.runner.weights_changed()
    engine.warm_up(lambda text: None)
    assert all(torch.equal(a, b) for a, b in zip(before, pools._tensors(), strict=True))


def test_a_pass_takes_the_least_bucket_that_holds_it() -> None:
    buckets = RowBuckets.of(100, 100_000)
    assert buckets.rows == (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 100)
    assert buckets.contexts == (4096, 16384, 65536, 100_000)
    assert buckets.find(1, 1) == (1, 4096) and buckets.find(9, 4097) == (16, 16384)
    assert buckets.find(100, 100_000) == (100, 100_000)
    assert buckets.find(101, 1) is None and buckets.find(1, 100_001) is None
    assert next(buckets.all()) == (100, 100_000) and len(list(buckets.all())) == 44
    assert RowBuckets.of(64, 100, (8, 2, 8)) == RowBuckets((2, 8), (100,))
    assert RowBuckets.of(1, 100).rows == (1,)


@pytest.mark.parametrize("rows", [(), (0,), (2.5,), 8, "8", {8: 1}, (1, 2049)])
def test_rows_to_capture_are_numbers_of_rows_that_a_pass_may_have(rows: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="graph_rows"):
        EngineConfig(graph_rows=rows)


@pytest.mark.parametrize("name", ["cuda_graphs", "draft_adaptive", "keep_routes", "keep_picks", "debug_checks"])
def test_a_switch_is_true_or_false_and_not_a_word_for_it(name: str) -> None:
    for value in ("no", 0, None):
        with pytest.raises(ConfigError, match=f"{name} is {value!r}; it must be True or False"):
            EngineConfig(**{name: value})
