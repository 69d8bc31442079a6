"""Sampling parameters refuse what cannot be meant, and say what can."""

import subprocess
import sys
from typing import Any

import pytest

from benthic.engine.sampling import SamplingParams, choice_params
from benthic.errors import RequestError


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("max_tokens", 0, "an integer >= 1"),
        ("max_tokens", 1.5, "an integer >= 1"),
        ("temperature", -0.1, "a finite number >= 0"),
        ("temperature", float("nan"), "a finite number >= 0"),
        ("temperature", float("inf"), "a finite number >= 0"),
        ("top_p", 0.0, "a finite number > 0 and <= 1"),
        ("top_p", 1.1, "a finite number > 0 and <= 1"),
        ("top_k", -1, "an integer from 0"),
        ("min_p", 2, "a finite number >= 0 and <= 1"),
        ("seed", 2**63, "an integer from"),
        ("n", 0, "an integer from 1 to 128"),
        ("logprobs", 65, "an integer from 0 to 64"),
        ("min_tokens", -1, "an integer >= 0"),
        ("stop", ("",), "a non-empty string"),
        ("stop", (3,), "a non-empty string"),
        ("stop_token_ids", (-1,), "an integer from 0 to 2147483647"),
        ("stop", 5, "a string or a list of strings"),
        ("stop", b"end", "a string or a list of strings"),
        ("stop", {"end": 1}, "a string or a list of strings"),
        ("stop_token_ids", 5, "a list of token ids"),
        ("stop_token_ids", "5", "a list of token ids"),
        ("stop_token_ids", (True,), "an integer from"),
        ("top_k", 2**31, "an integer from 0 to 2147483647"),
        ("top_k", True, "an integer from 0"),
        ("max_tokens", True, "an integer >= 1"),
        ("min_tokens", False, "an integer >= 0"),
        ("n", True, "an integer from 1"),
        ("seed", False, "an integer from"),
        ("logprobs", True, "an integer from 0"),
        ("temperature", True, "a finite number >= 0"),
        ("temperature", 10**400, "a finite number >= 0"),
        ("presence_penalty", 2.1, "a finite number >= -2 and <= 2"),
        ("frequency_penalty", float("nan"), "a finite number >= -2 and <= 2"),
        ("repetition_penalty", 0.0, "a finite number >= 0.01 and <= 100"),
        ("repetition_penalty", "1", "a finite number >= 0.01 and <= 100"),
        ("logit_bias", 3, "a mapping from token ids to numbers"),
        ("logit_bias", {"a": 1.0}, "an integer from 0"),
        ("logit_bias", {-1: 1.0}, "an integer from 0"),
        ("logit_bias", {1: 101}, "a finite number >= -100 and <= 100"),
        ("logit_bias", [(1, 2.0, 3)], "a mapping from token ids to numbers"),
        ("logit_bias", [(1, 2.0), (1, 3.0)], "give each token once"),
        ("prompt_logprobs", 65, "an integer from 0 to 64"),
        ("prompt_logprobs", True, "an integer from 0 to 64"),
        ("include_stop", 1, "True or False"),
        ("stop_in_reasoning", None, "True or False"),
        ("return_routes", "yes", "True or False"),
        ("return_picks", 0, "True or False"),
        ("reasoning_end_id", -1, "an integer from 0"),
    ],
)
def test_a_bad_value_is_refused_with_field_value_and_what_is_allowed(field: str, value: object, allowed: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert caught.value.param == field
    assert field in str(caught.value)
    assert allowed in str(caught.value)


def test_more_tokens_at_least_than_at_most_is_refused() -> None:
    with pytest.raises(RequestError, match=r"min_tokens \(5\) must be <= max_tokens \(4\)"):
        SamplingParams(max_tokens=4, min_tokens=5)


def test_no_tokens_at_all_are_allowed_where_the_prompt_is_scored() -> None:
    assert SamplingParams(max_tokens=0, prompt_logprobs=0).max_tokens == 0
    with pytest.raises(RequestError, match="max_tokens is -1"):
        SamplingParams(max_tokens=-1, prompt_logprobs=0)


def test_a_thinking_budget_needs_the_token_that_ends_the_thinking() -> None:
    assert SamplingParams(thinking_budget=0, reasoning_end_id=5).thinking_budget == 0
    with pytest.raises(RequestError, match="thinking_budget is 3 and reasoning_end_id is None"):
        SamplingParams(thinking_budget=3)
    with pytest.raises(RequestError, match="thinking_budget is -1"):
        SamplingParams(thinking_budget=-1, reasoning_end_id=5)


def test_biases_are_kept_as_pairs_in_the_order_of_their_ids() -> None:
    assert SamplingParams(logit_bias={7: 1, 3: -100}).logit_bias == ((3, -100.0), (7, 1.0))  # type: ignore[arg-type]
    assert SamplingParams(logit_bias=None).logit_bias == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "has_rules", "needs_history"),
    [
        ({}, False, False),
        ({"temperature": 0.5, "top_k": 3, "logprobs": 2, "stop": "x"}, False, False),
        ({"min_tokens": 1}, True, False),
        ({"logit_bias": {1: 1.0}}, True, False),
        ({"presence_penalty": 0.1}, True, True),
        ({"frequency_penalty": -0.1}, True, True),
        ({"repetition_penalty": 1.1}, True, True),
        ({"thinking_budget": 4, "reasoning_end_id": 2}, True, True),
    ],
)
def test_parameters_say_whether_they_change_logits_and_look_back(
    fields: dict[str, Any], has_rules: bool, needs_history: bool
) -> None:
    params = SamplingParams(**fields)
    assert (params.has_rules, params.needs_history) == (has_rules, needs_history)


def test_an_answer_beside_the_first_has_its_own_seed_and_scores_no_prompt() -> None:
    params = SamplingParams(seed=2**63 - 1, n=3, stop="x", include_stop=True, prompt_logprobs=2)
    assert choice_params(params, 0) == SamplingParams(seed=2**63 - 1, prompt_logprobs=2)
    assert choice_params(params, 2) == SamplingParams(seed=-(2**63) + 1)


def test_a_single_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]


def test_none_means_no_stops() -> None:
    params = SamplingParams(stop=None, stop_token_ids=None)  # type: ignore[arg-type]
    assert (params.stop, params.stop_token_ids) == ((), ())


def test_importing_the_parameters_loads_no_torch() -> None:
    code = "import benthic.engine.sampling, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
