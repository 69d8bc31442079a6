"""An answer that fails says whose fault it was, and a stream of it raises the error of that kind."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import pytest

from benthic import LLM, AsyncLLM, SamplingParams
from benthic.engine.request import ErrorKind, FinalOutput, Request
from benthic.errors import BenthicError, Cancelled, CapacityError, EngineError, RequestError
from benthic.llm.answers import OpenAnswer
from tests.journeys.small_model import build_model

GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
PROMPT = list(range(20, 320))
KINDS: dict[ErrorKind, type[BenthicError]] = {
    "request": RequestError,
    "capacity": CapacityError,
    "timeout": Cancelled,
    "numbers": EngineError,
    "engine": EngineError,
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(build_model(), max_num_seqs=4) as llm:
        yield llm


@pytest.mark.parametrize("kind", get_args(ErrorKind))
def test_every_kind_of_error_has_a_class_of_its_own_tree(kind: ErrorKind) -> None:
    answer = OpenAnswer(Request(request_id="a", prompt_ids=(1,), params=GREEDY), 0, None)
    assert answer.failure is None
    base = FinalOutput(request_id="a", token_ids=(), logprobs=None, finish_reason="stop", prompt_len=1)
    answer.take(replace(base, finish_reason="error", error="why", error_kind=kind))
    assert type(answer.failure) is KINDS[kind]
    assert str(answer.failure) == answer.output().error == "why"
    assert answer.output().error_kind == kind


def test_an_answer_that_ran_out_of_time_is_of_kind_timeout_and_its_stream_raises_cancelled(llm: LLM) -> None:
    [late] = llm.generate([PROMPT], GREEDY, timeout_s=1e-4)
    assert (late.outputs[0].finish_reason, late.outputs[0].error_kind) == ("error", "timeout")
    with pytest.raises(Cancelled, match="timed out"):
        list(llm.stream(PROMPT, GREEDY, timeout_s=1e-4))
    [good] = llm.generate([PROMPT[:9]], SamplingParams(max_tokens=2, ignore_eos=True))
    assert (good.outputs[0].error, good.outputs[0].error_kind) == (None, None)


def test_an_asynchronous_stream_raises_cancelled_after_its_last_delta(llm: LLM) -> None:
    reasons: list[str | None] = []

    async def run() -> None:
        async with AsyncLLM(llm.model) as other:
            async for delta in other.stream(PROMPT, GREEDY, timeout_s=1e-4):
                reasons.append(delta.finish_reason)

    with pytest.raises(Cancelled, match="timed out"):
        asyncio.run(run())
    assert reasons[-1] == "error"
