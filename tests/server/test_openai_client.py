"""The official OpenAI client against a real server on loopback."""

import json
from typing import Any

import openai
import pytest

from benthic.text.tokenizer import END_THINK, EOS

ASK: Any = [{"role": "user", "content": "What is 347 + 285?"}]
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
CALL = (
    '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="add">\n'
    '<｜DSML｜parameter name="a" string="false">347</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="b" string="false">285</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>" + EOS
)
OFF = {"thinking": {"type": "disabled"}}


def client_of(up: Any, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{up.url}/v1", api_key="any", max_retries=0, **options)


def test_answers_stream_and_arrive_whole_with_usage(live: Any) -> None:
    with live("632 🌊" + EOS) as up, client_of(up) as client:
        answer = client.chat.completions.create(model="tiny", messages=ASK, extra_body=OFF)
        assert answer.choices[0].message.content == "632 🌊"
        stream = client.chat.completions.create(
            model="tiny", messages=ASK, extra_body=OFF, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "632 🌊"
        assert chunks[-1].usage == answer.usage


def test_reasoning_streams_apart_from_the_answer(live: Any) -> None:
    with live(f"carry{END_THINK}632" + EOS) as up, client_of(up) as client:
        stream = client.chat.completions.create(model="tiny", messages=ASK, reasoning_effort="high", stream=True)
        deltas = [chunk.choices[0].delta for chunk in stream if chunk.choices]
        assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "carry"
        assert "".join(delta.content or "" for delta in deltas) == "632"


def test_a_tool_call_round_trip_through_the_stream_helper(live: Any) -> None:
    with live(CALL) as up, client_of(up) as client:
        with client.chat.completions.stream(model="tiny", messages=ASK, tools=[ADD], extra_body=OFF) as stream:
            stream.until_done()
            choice = stream.get_final_completion().choices[0]
        assert choice.finish_reason == "tool_calls"
        [call] = choice.message.tool_calls or []
        assert json.loads(call.function.arguments) == {"a": 347, "b": 285}
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "632"}
        history = [*ASK, choice.message.model_dump(exclude_none=True, exclude={"parsed"}), result]
        up.engine.said = "It is 632." + EOS
        answer = client.chat.completions.create(model="tiny", messages=history, tools=[ADD], extra_body=OFF)
        assert answer.choices[0].message.content == "It is 632."


def test_text_completions_and_models(live: Any) -> None:
    with live("and on" + EOS) as up, client_of(up) as client:
        answer = client.completions.create(model="tiny", prompt=["a", "b"], logprobs=1)
        assert [choice.text for choice in answer.choices] == ["and on"] * 2
        assert [model.id for model in client.models.list()] == ["tiny"]
        assert client.models.retrieve("tiny").id == "tiny"


def test_errors_arrive_as_the_clients_own_exceptions(live: Any) -> None:
    with live("a" + EOS, step_s=0.02, max_open_sequences=2) as up, client_of(up) as client:
        with pytest.raises(openai.NotFoundError) as unknown:
            client.chat.completions.create(model="gpt-4", messages=ASK)
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model="tiny", messages=ASK, temperature=9)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.BadRequestError) as never:
            client.chat.completions.create(model="tiny", messages=ASK, n=3)
        assert never.value.param == "n"
        endless = {**OFF, "ignore_eos": True}
        with client.chat.completions.create(
            model="tiny", messages=ASK, n=2, stream=True, max_tokens=300, extra_body=endless
        ) as stream:
            next(stream)
            with pytest.raises(openai.RateLimitError):
                client.chat.completions.create(model="tiny", messages=ASK)


def test_an_error_inside_a_stream_is_raised(live: Any) -> None:
    with live("a b c", step_s=0.02) as up, client_of(up) as client:
        stream = client.chat.completions.create(
            model="tiny", messages=ASK, stream=True, max_tokens=300, extra_body={**OFF, "ignore_eos": True}
        )
        next(stream)
        up.engine.failing = True
        with pytest.raises(openai.APIError, match="could not finish"):
            list(stream)
