"""How the next token is chosen: plain data, checked when made. No torch here, so that a command line can build one."""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from benthic.errors import RequestError

MAX_LOGPROBS = 64
MAX_CHOICES = 128
MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling of one request.

    A token is drawn by counter: the random number depends on (seed, position) alone, so the same request with the
    same seed gives the same tokens at any load.

    Raises:
        RequestError: a field is out of range; `param` names it.
    """

    max_tokens: int | None = None
    """Tokens to generate at most; None: until the end token or a full context."""
    temperature: float = 1.0
    """0 takes the most likely token (the lower id of equals)."""
    top_p: float = 1.0
    """Keeps the smallest set of most likely tokens whose probability reaches this."""
    top_k: int = 0
    """Keeps this many most likely tokens; 0 keeps all."""
    min_p: float = 0.0
    """Keeps tokens at least this share as likely as the most likely one."""
    seed: int | None = None
    """None draws a fresh seed for the request."""
    n: int = 1
    """Independent answers to the prompt; answer i of a seeded request is sampled with seed + i."""
    logprobs: int | None = None
    """None: no log-probabilities; k: those of the chosen tokens and of the k most likely at each position."""
    stop: tuple[str, ...] = ()
    """The text ends before the first of these (a single string may be given; None: none)."""
    stop_token_ids: tuple[int, ...] = ()
    """Generation ends with the first of these (None: none)."""
    ignore_eos: bool = False
    """Goes on after the end token."""
    min_tokens: int = 0
    """The end token and `stop_token_ids` cannot be chosen before this many tokens."""

    def __post_init__(self) -> None:
        given: object = self.stop
        stop = (given,) if isinstance(given, str) else _as_tuple("stop", given, "a string or a list of strings")
        object.__setattr__(self, "stop", stop)
        ids = _as_tuple("stop_token_ids", self.stop_token_ids, "a list of token ids")
        object.__setattr__(self, "stop_token_ids", ids)
        if self.max_tokens is not None:
            _require_int("max_tokens", self.max_tokens, 1)
        _require_number("temperature", self.temperature, 0.0, math.inf)
        _require_number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _require_int("top_k", self.top_k, 0, MAX_INT32)
        _require_number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _require_int("seed", self.seed, -(2**63), 2**63 - 1)
        _require_int("n", self.n, 1, MAX_CHOICES)
        if self.logprobs is not None:
            _require_int("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _require_int("min_tokens", self.min_tokens, 0)
        self._check_stops()

    def _check_stops(self) -> None:
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise RequestError(f"stop holds {text!r}; each stop must be a non-empty string", param="stop")
        for token in self.stop_token_ids:
            _require_int("stop_token_ids", token, 0, MAX_INT32)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens ({self.min_tokens}) must be <= max_tokens ({self.max_tokens})", param="min_tokens"
            )


def choice_params(params: SamplingParams, index: int) -> SamplingParams:
    """What the engine needs for answer `index` of a request: its own seed, no siblings, no stop strings."""
    seed = params.seed
    if seed is not None and index:
        seed = (seed + index + 2**63) % 2**64 - 2**63
    return replace(params, seed=seed, n=1, stop=())


def _as_tuple(name: str, value: object, allowed: str) -> tuple[Any, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence | Set) or isinstance(value, str | bytes):
        raise RequestError(f"{name} is {value!r}; it must be {allowed}", param=name)
    return tuple(value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond float64
        return False


def _require_int(name: str, value: Any, low: int, high: int | None = None) -> None:
    if isinstance(value, int) and not isinstance(value, bool) and value >= low and (high is None or value <= high):
        return
    allowed = f"an integer >= {low}" if high is None else f"an integer from {low} to {high}"
    raise RequestError(f"{name} is {value!r}; it must be {allowed}", param=name)


def _require_number(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)
    if is_number and low <= value <= high and not (open_low and value == low):
        return
    bound = f"> {low:g}" if open_low else f">= {low:g}"
    allowed = f"a finite number {bound}" + (f" and <= {high:g}" if math.isfinite(high) else "")
    raise RequestError(f"{name} is {value!r}; it must be {allowed}", param=name)
