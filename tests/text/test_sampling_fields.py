"""Rules of sampling, wishes and thinking budgets in request bodies: read as sent, refused by name."""

from typing import Any

import pytest

from benthic.errors import RequestError
from benthic.text import PromptEncoder, Tokenizer
from benthic.text.tokenizer import END_THINK

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="session")
def encoder(tokenizer: Tokenizer) -> PromptEncoder:
    return PromptEncoder(tokenizer, context_len=4096)


def refusal(encoder: PromptEncoder, body: Any) -> RequestError:
    with pytest.raises(RequestError) as error:
        encoder.encode("chat", body)
    return error.value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("frequency_penalty", 2.5),
        ("presence_penalty", "0"),
        ("repetition_penalty", 0),
        ("logit_bias", [5, 1]),
        ("logit_bias", {"five": 1}),
        ("logit_bias", {"05": 1}),
        ("logit_bias", {"4096": 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"5": True}),
        ("prompt_logprobs", 21),
        ("prompt_logprobs", True),
        ("priority", 101),
        ("priority", 1.5),
        ("cache_salt", ""),
        ("cache_salt", 5),
        ("thinking_budget", -1),
        ("thinking_budget", "9"),
        ("return_token_ids", 1),
        ("return_routed_experts", "yes"),
        ("return_report", []),
        ("return_picks", 1),
        ("stop_in_reasoning", "yes"),
        ("timeout_s", 0),
        ("timeout_s", "5"),
        ("timeout_s", True),
        ("timeout_s", 1e10),
    ],
)
def test_a_bad_value_is_refused_by_name(encoder: PromptEncoder, name: str, value: Any) -> None:
    error = refusal(encoder, {"messages": USER, name: value})
    assert error.param == name
    assert name in str(error)
    assert "it must be" in str(error)


def test_rules_and_wishes_are_read_as_they_were_sent(encoder: PromptEncoder) -> None:
    fields = {
        "frequency_penalty": 0.5, "presence_penalty": -1, "repetition_penalty": 1.25, "logit_bias": {"7": -3, "5": 1.5},
        "priority": -4, "cache_salt": "tenant", "timeout_s": 2.5, "return_picks": True,
        "prompt_logprobs": 2, "return_token_ids": True, "return_report": True,
    }  # fmt: skip
    prompt = encoder.encode("chat", {"messages": USER, **fields})
    sampling, wishes = prompt.sampling, prompt.wishes
    assert (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty) == (0.5, -1.0, 1.25)
    assert sampling.logit_bias == ((5, 1.5), (7, -3.0))
    assert sampling.prompt_logprobs == wishes.prompt_logprobs == 2
    assert (wishes.timeout_s, wishes.return_picks, sampling.return_picks) == (2.5, True, True)
    assert (wishes.priority, wishes.cache_salt) == (-4, "tenant")
    assert (wishes.return_token_ids, wishes.return_report, wishes.return_routed_experts) == (True, True, False)
    assert prompt.ignored == ()
    assert not encoder.encode("chat", {"messages": USER}).wishes.wants_extras


@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({"thinking_budget": 7}, 7),
        ({"thinking_budget": 0, "thinking": True}, 0),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, 9),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}, "thinking_budget": 9}, 9),
        ({"thinking_budget": 7, "thinking": False}, None),
        ({"thinking": {"type": "enabled"}}, None),
    ],
    ids=repr,
)
def test_a_thinking_budget_holds_where_the_reply_thinks(
    encoder: PromptEncoder, tokenizer: Tokenizer, fields: dict[str, Any], budget: int | None
) -> None:
    sampling = encoder.encode("chat", {"messages": USER, **fields}).sampling
    assert sampling.thinking_budget == budget
    assert sampling.reasoning_end_id == (None if budget is None else tokenizer.token_id(END_THINK))


def test_two_thinking_budgets_that_disagree_are_refused(encoder: PromptEncoder) -> None:
    fields = {"thinking_budget": 7, "thinking": {"type": "enabled", "budget_tokens": 9}}
    error = refusal(encoder, {"messages": USER, **fields})
    assert "thinking_budget is 7, thinking.budget_tokens is 9" in str(error)


def test_min_tokens_is_refused_where_every_token_would_end_the_answer(
    encoder: PromptEncoder, tokenizer: Tokenizer
) -> None:
    every = list(range(tokenizer.vocab_size))
    error = refusal(encoder, {"messages": USER, "min_tokens": 2, "stop_token_ids": every, "max_tokens": 4})
    assert error.param == "min_tokens"
    assert "min_tokens is 2; it must be 0 or absent where" in str(error)
    left = {"ignore_eos": True, "stop_token_ids": [i for i in every if i != tokenizer.eos_token_id]}
    encoder.encode("chat", {"messages": USER, "min_tokens": 2, "max_tokens": 4, **left})
