"""Sampling parameters refuse what cannot be meant, and say what can."""

import subprocess
import sys

import pytest

from benthic.engine.sampling import SamplingParams
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


def test_a_single_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]


def test_none_means_no_stops() -> None:
    params = SamplingParams(stop=None, stop_token_ids=None)  # type: ignore[arg-type]
    assert (params.stop, params.stop_token_ids) == ((), ())


def test_importing_the_parameters_loads_no_torch() -> None:
    code = "import benthic.engine.sampling, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
