"""Budgets of the engine: how many requests, rows and tokens it holds at once."""

from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from benthic.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What one engine may use. Validated here; what depends on the model is checked by `Engine`."""

    max_num_seqs: int = 64
    """Requests that run at once; more wait in order of arrival."""
    max_batched_tokens: int = 2048
    """Rows of one pass at most."""
    prefill_chunk: int = 256
    """Prompt rows in a pass that also decodes, so that a long prompt does not hold up running answers."""
    admission_headroom: int = 256
    """Tokens that every running request may still grow by when a new one is admitted; less room, more retractions."""
    max_model_len: int | None = None
    """Prompt plus answer of one request, in tokens; None: the model's limit, or what `cache_bytes` can hold."""
    max_num_waiting: int = 100_000
    """Requests that may wait; more are refused."""
    cache_bytes: int = 1 << 30
    """Memory for cached entries at most. Less is taken where max_num_seqs full contexts need less."""
    num_threads: int = 1
    """Intra-op threads of torch on CPU. The engine sets it: the bits of small products depend on it."""
    debug_checks: bool = False
    """Asserts the costly laws (block conservation) after every step."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_batched_tokens", "prefill_chunk", "max_num_waiting", "num_threads"):
            self._require_positive(name, getattr(self, name))
        self._require_positive("cache_bytes", self.cache_bytes)
        self._require_positive("admission_headroom", self.admission_headroom, least=0)
        if self.max_model_len is not None:
            self._require_positive("max_model_len", self.max_model_len, least=2)
        if self.max_batched_tokens <= self.max_num_seqs:
            raise ConfigError(
                f"max_batched_tokens ({self.max_batched_tokens}) must be > max_num_seqs ({self.max_num_seqs}): "
                "a pass decodes one row of every running request and leaves room for prompts"
            )

    @staticmethod
    def _require_positive(name: str, value: object, least: int = 1) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{name} is {value!r}; it must be an integer >= {least}")


def engine_config(**settings: Any) -> EngineConfig:
    """An EngineConfig from keyword settings.

    Raises:
        ConfigError: a name is unknown (the nearest known one is suggested), or a value is not allowed.
    """
    known = [item.name for item in fields(EngineConfig)]
    for name in settings:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"there is no engine setting {name!r}; {hint}")
    return EngineConfig(**settings)
