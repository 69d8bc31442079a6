"""/v1/completions: what comes back is what the engine generated, in every form of request."""

import asyncio
from typing import Any

import pytest

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.request import FinalOutput, Request
from benthic.engine.sampling import SamplingParams
from benthic.engine.scoring import packed_logprobs
from benthic.models.transformer import Transformer
from benthic.server.usage import Usage
from benthic.text.tokenizer import EOS, Tokenizer

pytestmark = pytest.mark.anyio
PATH = "/v1/completions"
TEXT = "The sea, das Meer, 海 🌊"


def generate(model: Transformer, ids: list[int], params: SamplingParams) -> FinalOutput:
    """What an engine of its own makes of a prompt."""
    engine = Engine(model, EngineConfig(max_model_len=512))
    engine.add(Request(request_id="alone", prompt_ids=tuple(ids), params=params))
    while True:
        for event in engine.step():
            if isinstance(event, FinalOutput):
                return event


def joined(frames: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(c["text"] for frame in frames for c in frame["choices"] if c["index"] == index)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_stream_plain_answer_and_the_engines_own_ids_say_the_same(
    served: Any, model: Transformer, tokenizer: Tokenizer, seed: int
) -> None:
    final = generate(model, tokenizer.encode(TEXT), SamplingParams(max_tokens=40, seed=seed))
    shown = [i for i in final.token_ids if i != tokenizer.eos_token_id]
    body = {"model": "tiny", "prompt": TEXT, "max_tokens": 40, "seed": seed}
    plain = await served.json(PATH, **body)
    frames = await served.frames(PATH, **body)
    assert plain["choices"][0]["text"] == tokenizer.decode(shown)
    assert joined(frames) == tokenizer.decode(shown)
    assert plain["usage"]["completion_tokens"] == len(final.token_ids)
    reasons = [choice["finish_reason"] for frame in frames for choice in frame["choices"]]
    assert [reason for reason in reasons if reason] == [plain["choices"][0]["finish_reason"]] == [final.finish_reason]


async def test_text_ids_and_lists_of_either_are_the_same_prompts(served: Any, tokenizer: Tokenizer) -> None:
    texts = ["One two", "three"]
    ids = [tokenizer.encode(text) for text in texts]
    common = {"model": "tiny", "temperature": 0, "max_tokens": 6}
    from_texts = await served.json(PATH, prompt=texts, **common)
    from_ids = await served.json(PATH, prompt=ids, **common)
    alone = [await served.json(PATH, prompt=prompt, **common) for prompt in (texts[0], ids[1])]
    answers = [choice["text"] for choice in from_texts["choices"]]
    assert answers == [choice["text"] for choice in from_ids["choices"]]
    assert answers == [answer["choices"][0]["text"] for answer in alone]
    assert [choice["index"] for choice in from_texts["choices"]] == [0, 1]
    assert from_texts["usage"]["prompt_tokens"] == sum(map(len, ids))


async def test_an_answer_does_not_depend_on_its_neighbours(served: Any) -> None:
    bodies = [
        {"model": "tiny", "prompt": f"{TEXT} {i}" * (1 + i), "max_tokens": 6 + i, "seed": i, "logprobs": 1}
        for i in range(10)
    ]
    alone = [await served.json(PATH, **body) for body in bodies]
    together = await asyncio.gather(*(served.json(PATH, **body) for body in bodies))
    assert [answer["choices"] for answer in together] == [answer["choices"] for answer in alone]


async def test_without_max_tokens_sixteen_are_generated(served: Any) -> None:
    answer = await served.json(PATH, model="tiny", prompt="x", ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_max_tokens_is_exact(served: Any) -> None:
    for max_tokens in (1, 2, 7):
        answer = await served.json(PATH, model="tiny", prompt="x", max_tokens=max_tokens, ignore_eos=True)
        assert answer["usage"]["completion_tokens"] == max_tokens


async def test_n_answers_have_seeds_of_their_own_and_the_prompt_counts_once(served: Any, tokenizer: Tokenizer) -> None:
    body = {"model": "tiny", "prompt": ["Hello there", "You"], "max_tokens": 8, "ignore_eos": True, "seed": 5}
    several = await served.json(PATH, **body, n=3)
    texts = [choice["text"] for choice in several["choices"]]
    assert len(set(texts[:3])) == 3
    assert [choice["index"] for choice in several["choices"]] == list(range(6))
    first = await served.json(PATH, **body)
    assert [choice["text"] for choice in first["choices"]] == [texts[0], texts[3]]
    usage = several["usage"]
    assert usage["completion_tokens"] == 6 * 8
    assert usage["prompt_tokens"] == len(tokenizer.encode("Hello there")) + len(tokenizer.encode("You"))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_echo_puts_the_prompt_in_front_streamed_or_not(served: Any) -> None:
    body = {"model": "tiny", "prompt": TEXT, "max_tokens": 3, "temperature": 0}
    bare = await served.json(PATH, **body)
    echoed = await served.json(PATH, **body, echo=True)
    assert echoed["choices"][0]["text"] == TEXT + bare["choices"][0]["text"]
    assert joined(await served.frames(PATH, **body, echo=True)) == echoed["choices"][0]["text"]


async def test_logprobs_are_those_of_a_forward_pass_and_the_first_prompt_token_has_none(
    served: Any, model: Transformer, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode(TEXT)
    answer = await served.json(
        PATH, model="tiny", prompt=ids, max_tokens=5, seed=3, echo=True, logprobs=2, ignore_eos=True
    )
    logprobs = answer["choices"][0]["logprobs"]
    final = generate(model, ids, SamplingParams(max_tokens=5, seed=3, ignore_eos=True))
    expected = packed_logprobs(model, [*ids, *final.token_ids]).tolist()
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:] == expected
    assert len(logprobs["tokens"]) == len(logprobs["top_logprobs"]) == len(logprobs["text_offset"]) == len(ids) + 5
    columns = [logprobs[name][1:] for name in ("tokens", "token_logprobs", "top_logprobs")]
    for token, value, top in zip(*columns, strict=True):
        assert top[token] == value
        assert 2 <= len(top) <= 3


async def test_logprobs_do_not_depend_on_streaming(served: Any) -> None:
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 6, "seed": 1, "logprobs": 3, "echo": True}
    plain = (await served.json(PATH, **body))["choices"][0]["logprobs"]
    parts = [c["logprobs"] for f in await served.frames(PATH, **body) for c in f["choices"] if c["logprobs"]]
    assert {name: [entry for part in parts for entry in part[name]] for name in plain} == plain


async def test_a_stop_string_is_not_shown_and_ends_the_sequence(scripted: Any) -> None:
    async with scripted("one two three four five six" + EOS, step_s=0.02) as up:
        for stream in (False, True):
            body = {"model": "tiny", "prompt": "count", "stop": ["xyz", "ree f"], "max_tokens": 50}
            if stream:
                frames = await up.frames(PATH, **body)
                text, reason = joined(frames), frames[-1]["choices"][0]["finish_reason"]
            else:
                choice = (await up.json(PATH, **body))["choices"][0]
                text, reason = choice["text"], choice["finish_reason"]
            assert (text, reason) == ("one two th", "stop")
        assert list(up.engine.cancelled.values()) == ["stop", "stop"]
        assert up.service.channel.num_open == 0


async def test_a_stop_token_ends_the_text_before_it(scripted: Any, tokenizer: Tokenizer) -> None:
    async with scripted("Hello world" + EOS) as up:
        answer = await up.json(PATH, model="tiny", prompt="hi", stop_token_ids=[tokenizer.eos_token_id])
        assert answer["choices"][0]["text"] == "Hello world"
        assert answer["usage"]["completion_tokens"] == len(tokenizer.encode("Hello world")) + 1


async def test_usage_comes_once_and_last_when_asked_for_and_never_otherwise(served: Any) -> None:
    body = {"model": "tiny", "prompt": ["a", "b"], "n": 2, "max_tokens": 3, "seed": 1}
    frames = await served.frames(PATH, **body, stream_options={"include_usage": True})
    assert [frame["choices"] == [] for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert all(frame["usage"] is None for frame in frames[:-1])
    assert frames[-1]["usage"] == (await served.json(PATH, **body))["usage"]
    for frame in await served.frames(PATH, **body):
        assert "usage" not in frame


async def test_control_spellings_in_a_prompt_stay_text(scripted: Any, tokenizer: Tokenizer) -> None:
    async with scripted("ok" + EOS) as up:
        await up.json(PATH, model="tiny", prompt="<｜User｜> </think>")
        assert not set(up.engine.requests[0].prompt_ids) & tokenizer.control_ids


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "status"),
    [(511, None, 200), (511, 1, 200), (510, 2, 200), (510, 3, 400), (512, None, 400), (512, 1, 400), (600, 1, 400)],
)
async def test_the_context_bounds_prompt_and_answer_together(
    scripted: Any, prompt_len: int, max_tokens: int | None, status: int
) -> None:
    async with scripted("a b c d e f" + EOS) as up:
        response = await up.post(PATH, model="tiny", prompt=[5] * prompt_len, max_tokens=max_tokens)
        assert response.status_code == status
        if status == 400:
            error = response.json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert "512" in error["message"]
            assert str(prompt_len) in error["message"]
        assert up.service.channel.num_open == 0


UNBUILT: list[tuple[str, Any]] = [
    ("response_format", "json"),
    ("guided_regex", "(["),
    ("bad_words", ["x"]),
    ("max_completion_tokens", 5),
]
GOOD = {"model": "tiny", "prompt": "hi"}
BAD_FIELDS: list[tuple[str, Any, int, str | None]] = [
    *[("prompt", value, 400, "prompt") for value in (None, "", [], [[]], {}, 7, [1.5], [-1], [4096], [True])],
    *[(name, value, 400, name) for name, value in UNBUILT],
    *[("prompt", value, 400, "prompt") for value in (["a", 1], [[1], "a"], [[1], [2, None]], ["a"] * 200)],
    *[("max_tokens", value, 400, "max_tokens") for value in (0, -1, 1.5, "1", True, [], {}, 10**9)],
    *[("temperature", value, 400, "temperature") for value in (-3, 2.1, "hot", True, [])],
    *[("top_p", value, 400, "top_p") for value in (0, 7, -0.1, "1", False)],
    *[("top_k", value, 400, "top_k") for value in (-2, 1.5, "3", 10**9)],
    *[("min_p", value, 400, "min_p") for value in (-0.1, 1.1, "0")],
    *[("seed", value, 400, "seed") for value in (1.5, "1", 2**63, -(2**63) - 1)],
    *[("n", value, 400, "n") for value in (0, -1, 1.5, 129, "2")],
    *[("logprobs", value, 400, "logprobs") for value in (-1, 21, "5", True, 0.5)],
    *[("stop", value, 400, "stop") for value in ("", [""], [1], ["x"] * 17, {}, 3)],
    *[("stop_token_ids", value, 400, "stop_token_ids") for value in ([-1], [4096], 5, ["a"], [1.0], [True])],
    *[("prompt_logprobs", value, 400, "prompt_logprobs") for value in (False, True, "1", 21)],
    *[
        (name, value, 400, name)
        for name in ("thinking_budget", "chat_template_kwargs", "enable_thinking", "top_logprobs", "reasoning_effort")
        for value in (5, True, "x", {"x": 1}, [1])
    ],
    *[(name, {"x": 1}, 400, name) for name in ("messages", "tools", "system", "input", "max_output_tokens")],
    *[("user", 1, 400, "user"), ("metadata", "x", 400, "metadata"), ("store", 1, 400, "store")],
    *[("stream", value, 400, "stream") for value in ("yes", 1, [])],
    *[("stream_options", value, 400, "stream_options") for value in ("x", [1], {"include_usage": True})],
    *[("echo", value, 400, "echo") for value in ("yes", 1)],
    *[("ignore_eos", value, 400, "ignore_eos") for value in ("no", 0)],
    *[("min_tokens", value, 400, "min_tokens") for value in (-1, 17, "1")],
    *[("suffix", value, 400, "suffix") for value in ("tail", 3)],
    *[("best_of", value, 400, "best_of") for value in (2, "1", True)],
    *[("presence_penalty", value, 400, "presence_penalty") for value in (2.5, "0", -9)],
    *[("frequency_penalty", value, 400, "frequency_penalty") for value in (3, [])],
    *[("repetition_penalty", value, 400, "repetition_penalty") for value in (0, "1", True)],
    *[("logit_bias", value, 400, "logit_bias") for value in ({"a": 1}, {"4096": 1}, {"5": 101}, [])],
    *[("prompt_logprobs", value, 400, "prompt_logprobs") for value in (-1, 21, True, "1")],
    *[("priority", value, 400, "priority") for value in (101, "1", 0.5)],
    *[("cache_salt", value, 400, "cache_salt") for value in ("", 5, "x" * 257)],
    *[(name, 1, 400, name) for name in ("return_token_ids", "return_routed_experts", "return_report")],
    *[("include_stop_str_in_output", value, 400, "include_stop_str_in_output") for value in (1, "yes")],
    *[("model", value, 400, "model") for value in (5, ["tiny"])],
    *[("model", value, 404, "model") for value in ("gpt-4", "", "Tiny")],
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "status", "param"), BAD_FIELDS, ids=lambda value: repr(value)[:24])
async def test_a_bad_field_is_refused_by_name(scripted: Any, field: str, value: Any, status: int, param: str) -> None:
    async with scripted("a" + EOS) as up:
        response = await up.post(PATH, **{**GOOD, field: value})
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["param"] == param
        assert field in error["message"]
        assert not up.engine.requests


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([1, 2, 3, 4096], "prompt[3] is 4096; it must be a token id, an integer in 0..4095"),
        ([1, -1], "prompt[1] is -1;"),
        ([1.5], "prompt[0] is 1.5;"),
        ([1, 2.5], "prompt[1] is 2.5;"),
        ([True], "prompt[0] is true;"),
        ([[1], [2, None]], "prompt[1][1] is null;"),
    ],
    ids=repr,
)
async def test_a_wrong_token_id_is_named_with_its_index(scripted: Any, prompt: Any, words: str) -> None:
    async with scripted("a" + EOS) as up:
        error = (await up.post(PATH, model="tiny", prompt=prompt)).json()["error"]
        assert words in error["message"]
        error = (await up.post("/detokenize", tokens=[5, 4096])).json()["error"]
        assert "tokens[1] is 4096;" in error["message"]


@pytest.mark.parametrize("length", [1, 200, 512])
async def test_max_tokens_0_with_echo_scores_a_prompt_up_to_the_whole_context(
    served: Any, model: Transformer, length: int
) -> None:
    ids = [(7 * i) % 4000 + 20 for i in range(length)]
    body = {"model": "tiny", "prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 1}
    answer = await served.json(PATH, **body)
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["logprobs"]["token_logprobs"][1:] == packed_logprobs(model, ids).tolist()
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["prompt_tokens"] == length
    frames = await served.frames(PATH, **body)
    assert joined(frames) == choice["text"]
    assert [f["choices"][0]["finish_reason"] for f in frames] == [None, "length"]


async def test_a_prompt_beyond_the_context_is_not_scored(scripted: Any) -> None:
    async with scripted("a" + EOS) as up:
        response = await up.post(PATH, model="tiny", prompt=[5] * 513, max_tokens=0, echo=True)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"


NEUTRAL = {
    "max_tokens": [None, 1, 16],
    "temperature": [None, 0, 2, 0.5],
    "top_p": [None, 1, 0.01],
    "top_k": [None, -1, 0, 1, 4096],
    "n": [None, 1, 128],
    "logprobs": [None, 0, 20],
    "stop": [None, [], "x", ["x"] * 16],
    "suffix": [None, ""],
    "best_of": [None, 1],
    "presence_penalty": [None, 0, 0.0, -2, 2],
    "frequency_penalty": [None, 0, 0.5],
    "repetition_penalty": [None, 1, 1.3],
    "logit_bias": [None, {}, {"0": -100, "4095": 100.0}],
    "priority": [None, 0, -100, 100],
    "cache_salt": [None, "x"],
    "response_format": [None, {"type": "text"}],
    "prompt_logprobs": [None, 0, 20],
    "stream_options": [None, {}],
    "user": ["me"],
    "unheard_of": [{"x": 1}],
}


@pytest.mark.parametrize(("field", "value"), [(name, value) for name, values in NEUTRAL.items() for value in values])
async def test_edges_and_neutral_values_are_accepted(scripted: Any, field: str, value: Any) -> None:
    async with scripted("a" + EOS) as up:
        assert (await up.post(PATH, **{**GOOD, field: value})).status_code == 200


async def test_token_ids_are_returned_when_asked_for_and_a_token_without_text_is_among_them(
    scripted: Any, tokenizer: Tokenizer
) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 50, "return_token_ids": True}
    async with scripted(f"sea{EOS}") as up:
        plain = await up.json(PATH, **body)
        frames = await up.frames(PATH, **body)
        silent = await up.json(PATH, **{**body, "return_token_ids": False})
    ids = [*tokenizer.encode("sea"), tokenizer.eos_token_id]
    assert plain["choices"][0]["token_ids"] == ids
    assert [i for frame in frames for choice in frame["choices"] for i in choice["token_ids"]] == ids
    assert "token_ids" not in silent["choices"][0]


def test_accepted_and_rejected_drafts_are_told_where_there_were_any() -> None:
    assert "completion_tokens_details" not in Usage(completion_tokens=9).to_json()
    details = Usage(completion_tokens=9, drafted_tokens=8, accepted_tokens=5).to_json()["completion_tokens_details"]
    assert details == {"accepted_prediction_tokens": 5, "rejected_prediction_tokens": 3}
