"""Answers of the public classes that must conform to a format, on a small random model."""

import asyncio
import json
import re
from collections.abc import Iterator

import pytest

from benthic import LLM, AsyncLLM, SamplingParams
from benthic.errors import BadSchema, RequestError
from benthic.text.tokenizer import Tokenizer
from tests.journeys.small_model import ASSETS, build_model

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
}
PARAMS = SamplingParams(temperature=1.0, seed=3, max_tokens=60, n=2)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(build_model(), tokenizer=Tokenizer(ASSETS), max_num_seqs=8) as llm:
        yield llm


def test_all_answers_conform_to_the_format(llm: LLM) -> None:
    for form in (
        {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
        {"type": "json_schema", "schema": SCHEMA},
    ):
        for output in llm.generate(["a", "b"], PARAMS, response_format=form):
            for answer in output.outputs:
                assert set(json.loads(answer.text)) == {"n", "ok"}
    assert re.fullmatch("[ab]{4}", "".join(llm.stream("x", response_format={"type": "regex", "pattern": "[ab]{4}"})))


def test_an_asynchronous_caller_gets_the_same_answer(llm: LLM) -> None:
    form = {"type": "regex", "pattern": "[a-d]{6}"}
    params = SamplingParams(temperature=1.0, seed=11, max_tokens=20)
    [expected] = llm.generate("x", params, response_format=form)

    async def ask() -> str:
        async with AsyncLLM(build_model(), tokenizer=Tokenizer(ASSETS)) as other:
            output = await other.generate("x", params, response_format=form)
            joined = [delta.text async for delta in other.stream("x", params, response_format=form)]
            assert "".join(joined) == output.outputs[0].text
            return output.outputs[0].text

    assert asyncio.run(ask()) == expected.outputs[0].text
    assert re.fullmatch("[a-d]{6}", expected.outputs[0].text)


def test_a_bad_format_is_refused_before_anything_is_generated(llm: LLM) -> None:
    with pytest.raises(BadSchema, match="parenthesis"):
        llm.generate("x", response_format={"type": "regex", "pattern": "(a"})
    with pytest.raises(BadSchema, match=r"json_schema\.schema has not"):
        llm.generate("x", response_format={"type": "json_schema", "json_schema": {"schema": {"not": {}}}})
    with pytest.raises(RequestError, match="one of text"):
        llm.generate("x", response_format={"type": "yaml"})
    with LLM(build_model()) as bare, pytest.raises(RequestError, match="no tokenizer"):
        bare.generate([1, 2], response_format={"type": "json_object"})
