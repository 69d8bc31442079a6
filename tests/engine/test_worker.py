"""The engine's thread answers every request exactly once, whatever happens to it."""

import time
from collections.abc import Iterator

import pytest
from torch import Tensor

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.request import Event, FinalOutput, Request, TokenEvent
from benthic.engine.sampling import SamplingParams
from benthic.engine.worker import EngineWorker
from benthic.errors import RequestError
from benthic.models.context import AttentionContext, Rows
from benthic.models.transformer import Transformer

DEADLINE_S = 60.0


class FaultyModel:
    """The small model, except that token 66 breaks the pass."""

    def __init__(self, model: Transformer) -> None:
        self.inner = model
        self.config, self.device, self.dtype, self.min_rows = model.config, model.device, model.dtype, model.min_rows
        self.hidden, self.logits = model.hidden, model.logits

    def __call__(self, rows: Rows, context: AttentionContext) -> Tensor:
        if 66 in rows.token_ids.tolist():
            raise RuntimeError("the device fell off the bus")
        result: Tensor = self.inner(rows, context)
        return result


@pytest.fixture
def worker(small_model: Transformer) -> Iterator[EngineWorker]:
    engine = Engine(FaultyModel(small_model), EngineConfig(max_num_seqs=4, max_model_len=1024, debug_checks=True))
    worker = EngineWorker(engine)
    worker.start()
    yield worker
    worker.close()


def request_of(name: str, prompt: tuple[int, ...] = (5, 6, 7), **params: object) -> Request:
    defaults: dict[str, object] = {"max_tokens": 4, "seed": 1, "top_k": 1, "ignore_eos": True}
    return Request(
        request_id=name,
        prompt_ids=prompt,
        params=SamplingParams(**(defaults | params)),  # type: ignore[arg-type]
    )


def receive_finals(worker: EngineWorker, count: int) -> dict[str, FinalOutput]:
    finals: dict[str, FinalOutput] = {}
    end = time.monotonic() + DEADLINE_S
    while len(finals) < count:
        assert time.monotonic() < end, f"only {sorted(finals)} ended"
        for event in worker.receive(timeout_s=1.0):
            if isinstance(event, FinalOutput):
                assert event.request_id not in finals, "two final outputs"
                finals[event.request_id] = event
    return finals


def first_event(worker: EngineWorker) -> Event:
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        if events := worker.receive(timeout_s=1.0):
            return events[0]
    raise AssertionError("nothing came")


def test_requests_from_outside_are_answered(worker: EngineWorker) -> None:
    for i in range(6):
        worker.add(request_of(str(i)))
    finals = receive_finals(worker, 6)
    assert {final.finish_reason for final in finals.values()} == {"length"}
    assert len({final.token_ids for final in finals.values()}) == 1


def test_waiting_for_nothing_returns_an_empty_list(worker: EngineWorker) -> None:
    assert worker.receive(timeout_s=0.01) == []


def test_a_refused_request_is_answered_with_the_reason(worker: EngineWorker) -> None:
    worker.add(request_of("empty", prompt=()))
    worker.add(request_of("fine"))
    finals = receive_finals(worker, 2)
    assert finals["empty"].finish_reason == "error"
    assert "the prompt is empty" in (finals["empty"].error or "")
    assert finals["fine"].finish_reason == "length"


def test_a_cancelled_request_ends_soon_and_frees_its_blocks(worker: EngineWorker) -> None:
    worker.add(request_of("long", max_tokens=1000))
    assert isinstance(first_event(worker), TokenEvent)
    worker.cancel("long")
    final = receive_finals(worker, 1)["long"]
    assert final.finish_reason == "cancelled"
    assert len(final.token_ids) < 900
    worker.add(request_of("next"))
    receive_finals(worker, 1)
    assert worker.stats.num_running == 0
    assert worker.stats.used_pages == 0


def test_a_front_door_that_found_a_stop_string_says_so(worker: EngineWorker) -> None:
    worker.add(request_of("long", max_tokens=1000))
    first_event(worker)
    worker.cancel("long", "stop")
    assert receive_finals(worker, 1)["long"].finish_reason == "stop"


def test_a_failing_step_ends_its_requests_and_the_worker_lives_on(worker: EngineWorker) -> None:
    worker.add(request_of("bad", prompt=(66, 1)))
    final = receive_finals(worker, 1)["bad"]
    assert final.finish_reason == "error"
    assert "the device fell off the bus" in (final.error or "")
    assert worker.is_alive
    worker.add(request_of("next"))
    assert receive_finals(worker, 1)["next"].finish_reason == "length"


def test_closing_answers_what_is_live_and_refuses_what_comes_later(small_model: Transformer) -> None:
    worker = EngineWorker(Engine(small_model, EngineConfig(max_num_seqs=2, max_model_len=1024)))
    worker.start()
    for i in range(4):
        worker.add(request_of(str(i), max_tokens=1000))
    first_event(worker)
    worker.close()
    assert not worker.is_alive
    assert {final.finish_reason for final in receive_finals(worker, 4).values()} == {"error"}
    with pytest.raises(RequestError, match="close"):
        worker.add(request_of("late"))
    worker.close()
