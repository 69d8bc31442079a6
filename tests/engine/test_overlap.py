"""A pass in flight while the next is planned: the same tokens, whatever the timing, and nothing left behind."""

import random

import pytest

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.request import FinalOutput, Request
from benthic.engine.sampling import SamplingParams
from benthic.models.transformer import Transformer
from tests.engine.scripted_drafter import OracleDrafter
from tests.exactness.serving import answers, each_alone, random_requests, serve


def late(seed: int) -> OracleDrafter:
    """Drafts nothing and ends passes late, at random."""
    return OracleDrafter({}, seed=seed, delay_s=0.004)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 12))])
def test_passes_that_end_at_random_times_give_the_answers_of_the_synchronous_loop(
    small_model: Transformer, seed: int
) -> None:
    rng = random.Random(seed)
    requests = random_requests(rng, 6, longest=200)
    again = [Request(request_id=f"again {r.request_id}", prompt_ids=r.prompt_ids, params=r.params) for r in requests]
    config = EngineConfig(
        max_num_seqs=4, max_batched_tokens=90, prefill_chunk=50, overlap_steps=1, cache_bytes=1 << 26, debug_checks=True
    )
    engine = Engine(small_model, config, drafter=late(seed))
    finals = serve(engine, [*requests, *again], rng, chance=0.4)
    assert answers(finals) == each_alone(small_model, [*requests, *again])
    assert engine.stats().used_pages == 0


def test_a_pass_really_is_in_flight_while_the_next_is_planned(small_model: Transformer) -> None:
    engine = Engine(small_model, EngineConfig(max_num_seqs=2, overlap_steps=1, cache_bytes=1 << 26))
    engine.add(Request(request_id="a", prompt_ids=(5, 6, 7), params=SamplingParams(max_tokens=5, ignore_eos=True)))
    assert engine.step() == []
    assert len(engine.step()) == 1
    assert "pass 2" in engine.describe()


@pytest.mark.parametrize(
    ("params", "drafter"),
    [({"frequency_penalty": 0.5}, "none"), ({"thinking_budget": 3, "reasoning_end_id": 9}, "none"), ({}, "ngram")],
    ids=["penalty", "thinking budget", "drafts"],
)
def test_what_looks_back_on_its_tokens_waits_for_them(
    small_model: Transformer, params: dict[str, object], drafter: str
) -> None:
    config = EngineConfig(overlap_steps=1, drafter=drafter, cache_bytes=1 << 26)  # type: ignore[arg-type]
    engine = Engine(small_model, config)
    settings = SamplingParams(max_tokens=6, seed=1, logprobs=0, ignore_eos=True, **params)  # type: ignore[arg-type]
    request = Request(request_id="a", prompt_ids=(5, 6, 7), params=settings)
    engine.add(request)
    finals = {}
    while engine.has_work():
        events = engine.step()
        finals |= {event.request_id: event for event in events if isinstance(event, FinalOutput)}
        # Its next pass was not launched before this one's token was known.
        assert not (events and "pass " in engine.describe())
    assert answers(finals) == each_alone(small_model, [request])


@pytest.mark.parametrize("num_steps", range(5))
def test_a_request_cancelled_under_a_pass_in_flight_leaves_nothing(small_model: Transformer, num_steps: int) -> None:
    config = EngineConfig(max_num_seqs=3, overlap_steps=1, cache_bytes=1 << 26, debug_checks=True)
    engine = Engine(small_model, config, drafter=late(num_steps))
    stays = Request(
        request_id="stays", prompt_ids=tuple(range(3, 90)), params=SamplingParams(max_tokens=8, seed=1, logprobs=0)
    )
    gone = Request(request_id="gone", prompt_ids=tuple(range(3, 200)), params=SamplingParams(max_tokens=50))
    engine.add(gone)
    engine.add(stays)
    events = [event for _ in range(num_steps) for event in engine.step()]
    engine.cancel("gone")
    # Whoever comes next may be given the same row, under the same pass.
    late_comer = Request(request_id="next", prompt_ids=stays.prompt_ids[::-1], params=stays.params)
    engine.add(late_comer)
    while engine.has_work():
        events += engine.step()
    finals = {event.request_id: event for event in events if isinstance(event, FinalOutput)}
    assert finals.pop("gone").finish_reason == "cancelled"
    assert answers(finals) == each_alone(small_model, [stays, late_comer])
    assert engine.stats().used_pages == 0


def test_a_stop_token_found_a_pass_late_ends_the_request_at_that_token(small_model: Transformer) -> None:
    params = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
    free = Request(request_id="a", prompt_ids=tuple(range(9, 70)), params=params)
    tokens = each_alone(small_model, [free])["a"][0]
    assert isinstance(tokens, tuple)
    stopped = Request(
        request_id="a",
        prompt_ids=free.prompt_ids,
        params=SamplingParams(max_tokens=30, temperature=0.0, stop_token_ids=(tokens[11],), ignore_eos=True),
    )
    engine = Engine(small_model, EngineConfig(overlap_steps=1, cache_bytes=1 << 26, debug_checks=True))
    assert answers(serve(engine, [stopped])) == each_alone(small_model, [stopped])
    assert engine.stats().used_pages == 0


def test_a_step_that_fails_in_flight_fails_its_requests_and_the_engine_works_on(small_model: Transformer) -> None:
    class Failing(OracleDrafter):
        def __init__(self) -> None:
            super().__init__({}, delay_s=0.001)
            self.fails = True

        def observe(self, computed: object, depths: object) -> list[list[int]]:
            if self.fails:
                raise RuntimeError("the device is gone")
            return []

    drafter = Failing()
    engine = Engine(small_model, EngineConfig(overlap_steps=1, cache_bytes=1 << 26, debug_checks=True), drafter=drafter)
    request = Request(request_id="a", prompt_ids=(5, 6, 7), params=SamplingParams(max_tokens=5, seed=1))
    engine.add(request)
    engine.step()
    with pytest.raises(RuntimeError, match="the device is gone"):
        engine.step()
    [final] = [event for event in engine.fail_all("the step failed") if isinstance(event, FinalOutput)]
    assert (final.request_id, final.error) == ("a", "the step failed")
    drafter.fails = False
    assert answers(serve(engine, [request])) == each_alone(small_model, [request])
