"""Routes and picks come back for every token: computed, cached, replayed, guessed, retracted or forked alike."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from benthic.cache.geometry import CacheCapacity
from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.request import FinalOutput, Request, RowExtras, TokenEvent
from benthic.engine.sampling import SamplingParams
from benthic.errors import RequestError
from benthic.models.packed import PackedContext
from benthic.models.rows import build_rows
from benthic.models.trace import Trace
from benthic.models.transformer import Transformer
from tests.exactness.families import family_engine, family_model
from tests.exactness.serving import serve

SETTINGS = {"max_num_seqs": 4, "cache_bytes": 1 << 26, "keep_routes": True, "keep_picks": True, "debug_checks": True}


def request_of(name: str, prompt_len: int = 300, max_tokens: int = 20, fork_of: str | None = None) -> Request:
    rng = random.Random(prompt_len)
    params = SamplingParams(
        max_tokens=max_tokens, temperature=0.0, ignore_eos=True, return_routes=True, return_picks=True
    )
    prompt = tuple(rng.randrange(2, 512) for _ in range(prompt_len))
    return Request(request_id=name, prompt_ids=prompt, params=params, fork_of=fork_of)


@torch.inference_mode()
def expected_of(model: Transformer, request: Request, final: FinalOutput) -> RowExtras:
    """What the packed path chooses, for all tokens but the last."""
    ids = [*request.prompt_ids, *final.token_ids][:-1]
    rows = build_rows([(0, 0, ids)], model.min_rows)
    trace = Trace(wants_picks=True)
    model(rows, PackedContext(model.config, rows), trace)
    layers = list(enumerate(model.config.layers))
    routes = torch.stack([trace.experts[layer] for layer, spec in layers if spec.mlp == "experts"], dim=1)
    indexed = [trace.picks[layer] for layer, spec in layers if spec.has_index]
    picks = torch.stack(indexed, dim=1)[: len(ids)].numpy() if indexed else None
    return RowExtras(routes[: len(ids)].numpy(), picks)


def check(model: Transformer, request: Request, final: FinalOutput) -> None:
    assert final.extras is not None
    expected = expected_of(model, request, final)
    routes, picks = final.extras
    assert routes is not None and picks is not None
    assert routes.dtype == np.uint16
    assert picks.dtype == np.int32
    assert np.array_equal(routes, expected.routes)  # type: ignore[arg-type]
    assert np.array_equal(picks, expected.picks)  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{}, {"max_batched_tokens": 61, "prefill_chunk": 33}], ids=["whole", "chunks"])
@pytest.mark.parametrize("drafter", ["none", "mtp"])
def test_a_cold_and_a_warm_prompt_return_what_the_packed_path_chooses(
    small_model: Transformer, settings: dict[str, int], drafter: str
) -> None:
    engine = Engine(small_model, EngineConfig(drafter=drafter, **SETTINGS, **settings))  # type: ignore[arg-type]
    for name in ("cold", "warm"):
        request = request_of(name)
        final = serve(engine, [request])[name]
        assert (final.cached_len > 0) == (name == "warm")
        check(small_model, request, final)


@pytest.mark.parametrize("family", ["V2", "V3", "V3.2"])
def test_older_models_return_routes_of_the_layers_with_experts_and_picks_where_there_is_an_indexer(family: str) -> None:
    model = family_model(family)
    engine = Engine(model, family_engine(keep_routes=True, keep_picks=True, prefill_chunk=33))
    for name in ("cold", "warm"):
        request = request_of(name, prompt_len=90)
        final = serve(engine, [request])[name]
        assert (final.cached_len > 0) == (name == "warm") and final.extras is not None
        expected = expected_of(model, request, final)
        assert np.array_equal(final.extras.routes, expected.routes)  # type: ignore[arg-type]
        assert final.extras.routes.shape[1] == 2, "the first of three layers is dense"  # type: ignore[union-attr]
        assert (final.extras.picks is None) == (expected.picks is None) == (family != "V3.2")
        assert expected.picks is None or np.array_equal(final.extras.picks, expected.picks)  # type: ignore[arg-type]


@pytest.mark.parametrize("retention", ["boundaries", "none"])
@pytest.mark.parametrize("chunk", [512, 100])
def test_a_replay_writes_nothing_over_what_was_cached_with_the_pages(
    small_model: Transformer, retention: str, chunk: int
) -> None:
    """A replay begins without a window, so what its rows choose in the upper layers is not what the tokens chose."""
    config = EngineConfig(retention=retention, max_batched_tokens=chunk, prefill_chunk=chunk, **SETTINGS)  # type: ignore[arg-type]
    engine = Engine(small_model, config)
    first = request_of("first", prompt_len=1100)
    serve(engine, [first])
    branch = replace(first, request_id="branch", prompt_ids=(*first.prompt_ids[:900], 11, 12))
    longer = replace(branch, request_id="longer", prompt_ids=(*branch.prompt_ids, *range(20, 200)))
    for request in (branch, longer, replace(first, request_id="again")):
        final = serve(engine, [request])[request.request_id]
        assert request is not branch or (final.report is not None and final.report.replayed > 0)
        check(small_model, request, final)


def test_a_retracted_sequence_that_replays_keeps_what_its_rows_chose_at_first(small_model: Transformer) -> None:
    request = request_of("r", prompt_len=1000, max_tokens=40)
    engine = Engine(small_model, EngineConfig(retention="none", **SETTINGS))  # type: ignore[arg-type]
    engine.add(request)
    while not any(isinstance(event, TokenEvent) for event in engine.step()):
        pass
    engine.pause("retract")
    engine.resume()
    final = serve(engine, [])["r"]
    assert final.report is not None and final.report.replayed > 0
    check(small_model, request, final)


def test_retraction_loses_nothing(small_model: Transformer) -> None:
    requests = [request_of(f"r{length}", prompt_len=length, max_tokens=40) for length in (350, 351, 352)]
    capacity = CacheCapacity(num_pages=6, num_windows=12, num_rows=4, max_len=640)
    engine = Engine(small_model, EngineConfig(admission_headroom=0, **SETTINGS), capacity=capacity)  # type: ignore[arg-type]
    finals = serve(engine, requests)
    assert engine.stats().num_retractions > 0
    for request in requests:
        check(small_model, request, finals[request.request_id])


def test_forks_have_those_of_their_leaders_prompt(small_model: Transformer) -> None:
    requests = [request_of("leader"), request_of("fork", fork_of="leader")]
    engine = Engine(small_model, EngineConfig(**SETTINGS))  # type: ignore[arg-type]
    engine.add(requests[0])
    finals = serve(engine, requests[1:])
    report = finals["fork"].report
    assert report is not None and report.cut == "fork"
    for request in requests:
        check(small_model, request, finals[request.request_id])


def test_an_engine_that_keeps_none_refuses_by_name(small_model: Transformer) -> None:
    engine = Engine(small_model, EngineConfig(cache_bytes=1 << 26))
    with pytest.raises(RequestError, match="keep_routes"):
        engine.add(request_of("a"))
