"""The scripted model itself: tests that use it rely on its steps, its ends and its death."""

import time
from typing import Any

import pytest

from benthic.engine.process import EngineProcess
from benthic.engine.request import FinalOutput, Request, TokenEvent
from benthic.engine.sampling import SamplingParams
from benthic.text.tokenizer import EOS, Tokenizer
from tests.server.scripted_engine import Script, ScriptedEngine, answers_by_prompt, scripted_spec


def request(**params: Any) -> Request:
    return Request(request_id="a", prompt_ids=(5, 6), params=SamplingParams(**{"max_tokens": 100, **params}))


def play(engine: ScriptedEngine, asked: Request) -> tuple[list[list[int]], FinalOutput]:
    """The ids of each step that brought some, and the end."""
    engine.add(asked)
    steps, final = [], None
    while engine.has_work():
        events = engine.step()
        ids = [event.token_id for event in events if isinstance(event, TokenEvent)]
        steps += [ids] if ids else []
        final = next((event for event in events if isinstance(event, FinalOutput)), final)
    assert final is not None
    return steps, final


def test_ids_come_in_steps_of_the_sizes_that_the_script_names(tokenizer: Tokenizer) -> None:
    engine = ScriptedEngine(Script(range(10, 17), step_sizes=(3, 1)), tokenizer=tokenizer)
    steps, final = play(engine, request())
    assert steps == [[10, 11, 12], [13], [14, 15, 16]]
    assert (final.finish_reason, final.token_ids) == ("stop", tuple(range(10, 17)))


@pytest.mark.parametrize(
    ("params", "num_tokens", "reason"),
    [({"max_tokens": 2}, 2, "length"), ({"stop_token_ids": (12,)}, 3, "stop"), ({}, 4, "stop")],
    ids=["length", "stop token", "EOS"],
)
def test_it_ends_as_an_engine_does(tokenizer: Tokenizer, params: dict[str, Any], num_tokens: int, reason: str) -> None:
    engine = ScriptedEngine(Script([10, 11, 12, 1, 13], step_sizes=(5,)), tokenizer=tokenizer)
    steps, final = play(engine, request(**params))
    assert (len(final.token_ids), final.finish_reason) == (num_tokens, reason)
    assert list(final.token_ids) == sum(steps, [])


def test_a_delay_holds_its_id_back_and_a_cancel_does_not_wait_for_it(tokenizer: Tokenizer) -> None:
    engine = ScriptedEngine(Script([10, 11], delays_s={1: 60.0}), tokenizer=tokenizer)
    engine.add(request())
    while not engine.step():
        pass
    began = time.monotonic()
    assert engine.step() == []
    engine.cancel("a")
    [final] = engine.step()
    assert isinstance(final, FinalOutput)
    assert (final.finish_reason, final.token_ids) == ("cancelled", (10,))
    assert time.monotonic() - began < 5


def test_an_answer_may_depend_on_the_prompt(tokenizer: Tokenizer) -> None:
    said = answers_by_prompt(tokenizer, {"rain": "wet", "": "dry"})
    for prompt, answer in (("it rains", "wet"), ("it does not", "dry")):
        asked = Request(request_id="a", prompt_ids=tuple(tokenizer.encode(prompt)), params=SamplingParams(max_tokens=9))
        _, final = play(ScriptedEngine(said, tokenizer=tokenizer), asked)
        assert tokenizer.decode(final.token_ids) == answer


def test_it_runs_in_a_process_of_its_own(tokenizer: Tokenizer) -> None:
    engine = EngineProcess(scripted_spec("so it is" + EOS))
    engine.start()
    try:
        assert engine.wait_ready(60).vocab_size == tokenizer.vocab_size
        engine.add(request())
        events = []
        while not events or not isinstance(events[-1], FinalOutput):
            events += engine.receive(10)
        assert tokenizer.decode(events[-1].token_ids) == "so it is" + EOS
    finally:
        engine.close()
