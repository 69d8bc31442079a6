"""Whatever a request is made of, it is made or refused: no other error leaves the constructors."""

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benthic.engine.request import Request
from benthic.engine.sampling import SamplingParams
from benthic.errors import RequestError

_ENDLESS: list[Any] = []
_ENDLESS.append(_ENDLESS)
SCALARS = st.sampled_from(
    [None, True, False, 0, 1, -1, 10**400, -(10**400), 1.0, 0.5, math.nan, math.inf, -math.inf]
    + ["", "x", "\ud800", b"x", b"", object(), float, 1j, range(3), _ENDLESS, Ellipsis]
)
HOSTILE = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.integers(), inner, max_size=2)
    ),
    max_leaves=6,
)
REQUEST_FIELDS = ("params", "priority", "cache_salt", "use_cache", "timeout_s")


def refusal(make: Callable[..., object], **given_fields: Any) -> RequestError | None:
    """The refusal, if there is one; any other error is the test's failure."""
    try:
        make(**given_fields)
    except RequestError as error:
        return error
    return None


@settings(max_examples=300, deadline=None, derandomize=True)
@given(name=st.sampled_from([field.name for field in fields(SamplingParams)]), value=HOSTILE)
def test_sampling_params_take_any_value_or_refuse_it_by_name(name: str, value: Any) -> None:
    error = refusal(SamplingParams, **{name: value})
    assert error is None or (error.param is not None and name in str(error))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(name=st.sampled_from(REQUEST_FIELDS), value=HOSTILE)
def test_a_request_takes_any_value_or_refuses_it_by_name(name: str, value: Any) -> None:
    given_fields: dict[str, Any] = {"request_id": "a", "prompt_ids": (1,), "params": SamplingParams(), name: value}
    error = refusal(Request, **given_fields)
    assert error is None or (error.param == name and str(error).startswith(f"{name} is "))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("cache_salt", value) for value in (None, 1, "\ud800")],
        *[("timeout_s", value) for value in (10**400, math.inf, math.nan, 0, True)],
        ("params", None),
        ("use_cache", 1),
    ],
)
def test_a_wrong_field_of_a_request_is_refused(name: str, value: Any) -> None:
    given_fields: dict[str, Any] = {"request_id": "a", "prompt_ids": (1,), "params": SamplingParams(), name: value}
    with pytest.raises(RequestError, match=f"^{name} is .*; it must be") as caught:
        Request(**given_fields)
    assert caught.value.param == name


@pytest.mark.parametrize("stop", ["\ud800", ["a", "b\udfff"]])
def test_half_a_character_is_no_stop_string(stop: Any) -> None:
    with pytest.raises(RequestError, match="stop holds .*whole characters") as caught:
        SamplingParams(stop=stop)
    assert caught.value.param == "stop"


def test_an_integer_of_thousands_of_digits_is_refused_though_it_cannot_be_shown() -> None:
    with pytest.raises(RequestError, match="seed is a value of type int that is too large to show"):
        SamplingParams(seed=10**5000)
