"""Fields that mean the same in conversations and in plain completions: rules of sampling, and what to hand back."""

import re
from collections.abc import Set
from dataclasses import dataclass
from typing import Any

from benthic.text.fields import Body, read_boolean, read_integer, read_number, read_object, refuse

MAX_PENALTY = 2.0
MAX_REPETITION = 100.0
MAX_BIAS = 100.0
MAX_BIASES = 4096
MAX_PRIORITY = 100
MAX_SALT_LEN = 256
MAX_PROMPT_LOGPROBS = 20
MAX_TIMEOUT_S = 1e9

RULE_FIELDS = ("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias")
EXTRA_FIELDS = ("prompt_logprobs", "return_token_ids", "return_routed_experts", "return_picks", "return_report")
"""What an answer is to hold beside its text."""
WISH_FIELDS = ("priority", "cache_salt", "timeout_s", *EXTRA_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What changes the logits; the names are those of `engine.sampling.SamplingParams`."""

    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """How a request is served and what its answer holds beside its text."""

    priority: int = 0
    """-100 to 100; higher goes first."""
    cache_salt: str = ""
    """Only requests of the same salt share cached prefixes."""
    timeout_s: float | None = None
    """Seconds from arrival after which the request ends with an error; None for the server's own limit."""
    prompt_logprobs: int | None = None
    """Alternatives at each place of the prompt; None for no log-probabilities of it."""
    return_token_ids: bool = False
    return_routed_experts: bool = False
    return_picks: bool = False
    return_report: bool = False

    @property
    def wants_extras(self) -> bool:
        """Whether the answer holds anything that clients of the protocol do not expect."""
        return any(getattr(self, name) is not None and getattr(self, name) is not False for name in EXTRA_FIELDS)


def read_rules(body: Body, vocab_size: int) -> Rules:
    """Read frequency_penalty, presence_penalty, repetition_penalty and logit_bias.

    Raises:
        RequestError: one has the wrong type or is out of range.
    """
    repetition = read_number(body, "repetition_penalty", 1 / MAX_REPETITION, MAX_REPETITION)
    return Rules(
        frequency_penalty=read_number(body, "frequency_penalty", -MAX_PENALTY, MAX_PENALTY) or 0.0,
        presence_penalty=read_number(body, "presence_penalty", -MAX_PENALTY, MAX_PENALTY) or 0.0,
        repetition_penalty=1.0 if repetition is None else repetition,
        logit_bias=_read_biases(body, vocab_size),
    )


def check_min_tokens(min_tokens: int, stop_ids: Set[int], vocab_size: int) -> None:
    """Whether a token is left that does not end the answer, where some must come first.

    Raises:
        RequestError: none is.
    """
    if min_tokens and len(stop_ids) >= vocab_size:
        refuse("min_tokens", min_tokens, "0 or absent where the end token and stop_token_ids are the whole vocabulary")


def read_wishes(body: Body) -> Wishes:
    """Read priority, cache_salt, timeout_s, prompt_logprobs and the `return_` fields.

    Raises:
        RequestError: one has the wrong type or is out of range.
    """
    return Wishes(
        priority=read_integer(body, "priority", -MAX_PRIORITY, MAX_PRIORITY) or 0,
        cache_salt=_read_salt(body),
        timeout_s=read_number(body, "timeout_s", 0, MAX_TIMEOUT_S, above=True),
        prompt_logprobs=read_integer(body, "prompt_logprobs", 0, MAX_PROMPT_LOGPROBS),
        return_token_ids=read_boolean(body, "return_token_ids") or False,
        return_routed_experts=read_boolean(body, "return_routed_experts") or False,
        return_picks=read_boolean(body, "return_picks") or False,
        return_report=read_boolean(body, "return_report") or False,
    )


def _read_biases(body: Body, vocab_size: int) -> tuple[tuple[int, float], ...]:
    biases = read_object(body, "logit_bias") or {}
    if len(biases) > MAX_BIASES:
        refuse("logit_bias", f"an object of {len(biases)} tokens", f"an object of at most {MAX_BIASES} tokens")
    return tuple(sorted(_read_bias(key, value, vocab_size) for key, value in biases.items()))


def _read_bias(key: str, value: Any, vocab_size: int) -> tuple[int, float]:
    if not re.fullmatch(r"0|[1-9][0-9]{0,9}", key) or int(key) >= vocab_size:
        refuse("logit_bias", {key: value}, f"an object whose keys are token ids, integers in 0..{vocab_size - 1}")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not -MAX_BIAS <= value <= MAX_BIAS:
        refuse("logit_bias", {key: value}, f"an object whose values are numbers in [-{MAX_BIAS:g}, {MAX_BIAS:g}]")
    return int(key), float(value)


def _read_salt(body: Body) -> str:
    salt = body.get("cache_salt")
    if salt is None:
        return ""
    if not isinstance(salt, str) or not 1 <= len(salt) <= MAX_SALT_LEN:
        refuse("cache_salt", salt, f"a string of 1 to {MAX_SALT_LEN} characters")
    return str(salt)
