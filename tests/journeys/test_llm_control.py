"""An LLM is paused, changed and resumed between two tokens, from its own thread or from another."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benthic import LLM, SamplingParams
from benthic.errors import RequestError
from benthic.llm import RequestOutput
from benthic.text.tokenizer import Tokenizer
from tests.journeys.small_model import ASSETS, build_model

GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
PROMPT = list(range(20, 320))


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM(build_model(), tokenizer=Tokenizer(ASSETS), max_num_seqs=4, debug_checks=True) as llm:
        yield llm


class Asking(threading.Thread):
    """generate() in another thread."""

    def __init__(self, llm: LLM, params: SamplingParams = GREEDY, **fields: object) -> None:
        super().__init__(daemon=True)
        self.llm, self.params, self.fields = llm, params, fields
        self.outputs: list[RequestOutput] = []
        self.start()

    def run(self) -> None:
        self.outputs = self.llm.generate([PROMPT], self.params, **self.fields)  # type: ignore[arg-type]

    def answer(self) -> RequestOutput:
        self.join(60)
        assert not self.is_alive()
        return self.outputs[0]


def begun(llm: LLM) -> None:
    end = time.monotonic() + 30
    while llm.stats.num_generated_tokens < 3:
        assert time.monotonic() < end


@pytest.mark.parametrize("mode", ["keep", "retract"])
def test_a_paused_answer_stands_still_and_goes_on_as_if_nothing_had_been(llm: LLM, mode: str) -> None:
    asking = Asking(llm)
    begun(llm)
    llm.pause(mode)  # type: ignore[arg-type]
    count = llm.stats.num_generated_tokens
    time.sleep(0.1)
    assert llm.stats.num_generated_tokens == count < 60
    llm.resume()
    assert asking.answer() == llm.generate([PROMPT], GREEDY)[0]


def test_a_pause_that_aborts_ends_what_runs(llm: LLM) -> None:
    asking = Asking(llm)
    begun(llm)
    llm.pause("abort")
    assert asking.answer().outputs[0].finish_reason == "cancelled"
    llm.resume()
    assert len(llm.generate([PROMPT], GREEDY)[0].outputs[0].token_ids) == 60


def test_whoever_paused_is_not_left_waiting_for_itself(llm: LLM) -> None:
    llm.pause()
    with pytest.raises(RequestError, match=r"paused by this thread.*call resume\(\) first"):
        llm.generate([PROMPT], GREEDY)
    llm.resume()
    assert len(llm.generate([PROMPT], GREEDY)) == 1


def test_new_weights_are_those_of_another_model_from_a_state_dict(llm: LLM) -> None:
    other = build_model(seed=2)
    with LLM(build_model(seed=2), max_num_seqs=4) as fresh:
        [expected] = fresh.generate([PROMPT], GREEDY)
    [before] = llm.generate([PROMPT], GREEDY)
    assert llm.update_weights(other.state_dict()) == 1
    [after] = llm.generate([PROMPT], GREEDY)
    assert before.outputs[0].token_ids != after.outputs[0].token_ids == expected.outputs[0].token_ids
    assert after.cached_len == 0
    assert after.report is not None and after.report.weight_versions == (1,)
    with pytest.raises(RequestError, match="the weights are {}; they must be"):
        llm.update_weights({})
    assert llm.stats.weight_version == 1


def test_weights_change_in_the_middle_of_an_answer(llm: LLM) -> None:
    weights = build_model(seed=2).state_dict()  # beforehand: the answer does not wait for it
    asking = Asking(llm, replace(GREEDY, max_tokens=200))
    begun(llm)
    assert llm.update_weights(weights, version=7) == 7
    report = asking.answer().report
    assert report is not None and report.weight_versions == (0, 7)


def test_flush_forgets_prefixes_and_salts_keep_them_apart(llm: LLM) -> None:
    llm.generate([PROMPT], GREEDY, cache_salt="a")
    assert llm.generate([PROMPT], GREEDY, cache_salt="b")[0].cached_len == 0
    assert llm.generate([PROMPT], GREEDY, cache_salt="a")[0].cached_len > 0
    llm.flush()
    assert llm.generate([PROMPT], GREEDY, cache_salt="a")[0].cached_len == 0


def test_an_answer_that_takes_too_long_ends_with_an_error_also_while_paused(llm: LLM) -> None:
    [late] = llm.generate([PROMPT], GREEDY, timeout_s=1e-4)
    assert late.outputs[0].finish_reason == "error"
    assert "timed out" in (late.outputs[0].error or "")
    llm.pause()
    assert "timed out" in (Asking(llm, timeout_s=0.05).answer().outputs[0].error or "")
    llm.resume()
    with pytest.raises(RequestError, match="timeout_s is 0; it must be a number of seconds > 0"):
        llm.generate([PROMPT], GREEDY, timeout_s=0)
    with pytest.raises(RequestError, match="priority is 101"):
        llm.generate([PROMPT], GREEDY, priority=101)


def test_a_version_stands_for_one_set_of_weights(llm: LLM) -> None:
    first, second = build_model(seed=2).state_dict(), build_model(seed=3).state_dict()
    assert llm.update_weights(first, version=7) == 7
    for version in (7, 3):
        with pytest.raises(RequestError, match=f"the weights' version is {version}"):
            llm.update_weights(second, version=version)
    assert llm.update_weights(second) == 8
    assert llm.update_weights(first, version=7) == 7
    with pytest.raises(RequestError, match="it must be an integer"):
        llm.update_weights(second, version="new")  # type: ignore[arg-type]
