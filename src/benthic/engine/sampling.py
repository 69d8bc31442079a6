"""How the next token is chosen: plain data, checked when made. No torch here, so that a command line can build one."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from benthic.engine.grammar import Grammar
from benthic.errors import RequestError, shown

MAX_LOGPROBS = 64
MAX_CHOICES = 128
MAX_INT32 = 2**31 - 1
MAX_PENALTY = 2.0
MAX_BIAS = 100.0
MAX_REPETITION = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling of one request.

    A token is drawn by counter: the random number depends on (seed, position) alone, so the same request with the
    same seed gives the same tokens at any load.

    The logits of a position are changed in this order, each step only where it is asked for: repetition penalty,
    frequency and presence penalty, logit_bias, tokens forbidden by min_tokens, the thinking budget, the grammar; then
    temperature, top_k, top_p, min_p. Reported log-probabilities are of the raw logits, before all of it.

    Raises:
        RequestError: a field is out of range; `param` names it.
    """

    max_tokens: int | None = None
    """Tokens to generate at most; None: until the end token or a full context; 0: only prompt_logprobs are wanted."""
    temperature: float = 1.0
    """0 takes the most likely token (the lower id of equals)."""
    top_p: float = 1.0
    """Keeps the smallest set of most likely tokens whose probability reaches this."""
    top_k: int = 0
    """Keeps this many most likely tokens; 0 keeps all."""
    min_p: float = 0.0
    """Keeps tokens at least this share as likely as the most likely one."""
    presence_penalty: float = 0.0
    """From -2 to 2: taken off the logit of each token that was generated already (the prompt does not count)."""
    frequency_penalty: float = 0.0
    """From -2 to 2: taken off a token's logit once for each time it was generated (the prompt does not count)."""
    repetition_penalty: float = 1.0
    """From 0.01 to 100: divides the positive and multiplies the other logits of tokens that are in the prompt or were
    generated; 1 is off."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit, from -100 to 100); a mapping may be given (None: none)."""
    seed: int | None = None
    """None draws a fresh seed for the request."""
    n: int = 1
    """Independent answers to the prompt; answer i of a seeded request is sampled with seed + i."""
    logprobs: int | None = None
    """None: no log-probabilities; k: those of the chosen tokens and of the k most likely at each position."""
    prompt_logprobs: int | None = None
    """As `logprobs`, of the prompt's tokens; such a request computes its whole prompt and takes no cached prefix."""
    stop: tuple[str, ...] = ()
    """The text ends before the first of these (a single string may be given; None: none)."""
    include_stop: bool = False
    """The text holds the stop string that ended it."""
    stop_in_reasoning: bool = False
    """Stop strings also end the reasoning; else they are looked for after `reasoning_end_id`, where that is given."""
    stop_token_ids: tuple[int, ...] = ()
    """Generation ends with the first of these (None: none)."""
    ignore_eos: bool = False
    """Goes on after the end token."""
    min_tokens: int = 0
    """The end token and `stop_token_ids` cannot be chosen before this many tokens."""
    reasoning_end_id: int | None = None
    """The token that ends the reasoning of a reply which begins with reasoning; None: it has none."""
    thinking_budget: int | None = None
    """Reasoning tokens at most: after so many without `reasoning_end_id`, that is the next token (None: no bound)."""
    grammar: Grammar | None = None
    """What the answer must spell; the engine must have been given somebody who reads grammars (`masks`)."""
    return_routes: bool = False
    """The output says which experts each token went to; the engine must keep them (`keep_routes`)."""
    return_picks: bool = False
    """The output says which compressed entries the indexer chose; the engine must keep them (`keep_picks`)."""

    def __post_init__(self) -> None:
        given: object = self.stop
        stop = (given,) if isinstance(given, str) else _as_tuple("stop", given, "a string or a list of strings")
        object.__setattr__(self, "stop", stop)
        ids = _as_tuple("stop_token_ids", self.stop_token_ids, "a list of token ids")
        object.__setattr__(self, "stop_token_ids", ids)
        object.__setattr__(self, "logit_bias", _as_biases(self.logit_bias))
        if self.max_tokens is not None:
            _require_int("max_tokens", self.max_tokens, 1 if self.prompt_logprobs is None else 0)
        _require_number("temperature", self.temperature, 0.0, math.inf)
        _require_number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _require_int("top_k", self.top_k, 0, MAX_INT32)
        _require_number("min_p", self.min_p, 0.0, 1.0)
        _require_number("presence_penalty", self.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
        _require_number("frequency_penalty", self.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
        _require_number("repetition_penalty", self.repetition_penalty, 1 / MAX_REPETITION, MAX_REPETITION)
        if self.seed is not None:
            _require_int("seed", self.seed, -(2**63), 2**63 - 1)
        _require_int("n", self.n, 1, MAX_CHOICES)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _require_int(name, getattr(self, name), 0, MAX_LOGPROBS)
        for name in ("include_stop", "stop_in_reasoning", "ignore_eos", "return_routes", "return_picks"):
            _require_bool(name, getattr(self, name))
        _require_int("min_tokens", self.min_tokens, 0)
        self._check_stops()
        self._check_thinking()
        self._check_grammar()

    @property
    def needs_history(self) -> bool:
        """Whether a position's rule depends on which tokens came before, and so must wait for them on the host."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
            or self.thinking_budget is not None
            or self.grammar is not None
        )

    @property
    def has_rules(self) -> bool:
        """Whether anything may change the model's logits before they are sampled from."""
        return bool(self.logit_bias) or self.min_tokens > 0 or self.needs_history

    def named_ids(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(field, token ids in it), for whoever knows the vocabulary."""
        end = () if self.reasoning_end_id is None else (self.reasoning_end_id,)
        biased = tuple(token for token, _ in self.logit_bias)
        after = () if self.grammar is None or self.grammar.starts_after is None else (self.grammar.starts_after,)
        return (
            ("stop_token_ids", self.stop_token_ids),
            ("logit_bias", biased),
            ("reasoning_end_id", end),
            ("grammar.starts_after", after),
        )

    def _check_thinking(self) -> None:
        if self.reasoning_end_id is not None:
            _require_int("reasoning_end_id", self.reasoning_end_id, 0, MAX_INT32)
        if self.thinking_budget is None:
            return
        _require_int("thinking_budget", self.thinking_budget, 0)
        if self.reasoning_end_id is None:
            raise RequestError(
                f"thinking_budget is {self.thinking_budget} and reasoning_end_id is None; "
                "a budget needs the id of the token that ends the reasoning",
                param="reasoning_end_id",
            )

    def _check_grammar(self) -> None:
        if self.grammar is None:
            return
        if not isinstance(self.grammar, Grammar):
            raise RequestError(f"grammar is {shown(self.grammar)}; it must be a compiled Grammar", param="grammar")
        if self.grammar.starts_after is not None:
            _require_int("grammar.starts_after", self.grammar.starts_after, 0, MAX_INT32)

    def _check_stops(self) -> None:
        for text in self.stop:
            if not isinstance(text, str) or not text or not is_unicode(text):
                raise RequestError(
                    f"stop holds {shown(text)}; each stop must be a non-empty string of whole characters", param="stop"
                )
        for token in self.stop_token_ids:
            _require_int("stop_token_ids", token, 0, MAX_INT32)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens ({self.min_tokens}) must be <= max_tokens ({self.max_tokens})", param="min_tokens"
            )


def choice_params(params: SamplingParams, index: int) -> SamplingParams:
    """What the engine needs for answer `index` of a request: its own seed, no siblings, no stop strings.

    The prompt's log-probabilities come with the first answer alone.
    """
    seed = params.seed
    if seed is not None and index:
        seed = (seed + index + 2**63) % 2**64 - 2**63
    is_first = index == 0 or params.max_tokens == 0
    return replace(
        params, seed=seed, n=1, stop=(), include_stop=False, stop_in_reasoning=False,
        prompt_logprobs=params.prompt_logprobs if is_first else None,
    )  # fmt: skip


def _as_tuple(name: str, value: object, allowed: str) -> tuple[Any, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence | Set) or isinstance(value, str | bytes):
        raise RequestError(f"{name} is {shown(value)}; it must be {allowed}", param=name)
    return tuple(value)


def _as_biases(value: object) -> tuple[tuple[int, float], ...]:
    """Pairs in the order of their ids."""
    allowed = "a mapping from token ids to numbers, or a list of such pairs"
    items = tuple(value.items()) if isinstance(value, Mapping) else _as_tuple("logit_bias", value, allowed)
    biases: dict[int, float] = {}
    for item in items:
        if not isinstance(item, Sequence) or isinstance(item, str | bytes) or len(item) != 2:
            raise RequestError(f"logit_bias holds {shown(item)}; it must be {allowed}", param="logit_bias")
        token, bias = item
        _require_int("logit_bias", token, 0, MAX_INT32)
        _require_number("logit_bias", bias, -MAX_BIAS, MAX_BIAS)
        if token in biases:
            raise RequestError(f"logit_bias names token {token} twice; give each token once", param="logit_bias")
        biases[token] = float(bias)
    return tuple(sorted(biases.items()))


def is_unicode(text: str) -> bool:
    """Whether a text consists of whole characters: half of a surrogate pair is none, and cannot be sent anywhere."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _require_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise RequestError(f"{name} is {shown(value)}; it must be True or False", param=name)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond float64
        return False


def _require_int(name: str, value: Any, low: int, high: int | None = None) -> None:
    if isinstance(value, int) and not isinstance(value, bool) and value >= low and (high is None or value <= high):
        return
    allowed = f"an integer >= {low}" if high is None else f"an integer from {low} to {high}"
    raise RequestError(f"{name} is {shown(value)}; it must be {allowed}", param=name)


def _require_number(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)
    if is_number and low <= value <= high and not (open_low and value == low):
        return
    bound = f"> {low:g}" if open_low else f">= {low:g}"
    allowed = f"a finite number {bound}" + (f" and <= {high:g}" if math.isfinite(high) else "")
    raise RequestError(f"{name} is {shown(value)}; it must be {allowed}", param=name)
