"""Budgets of the engine: how many requests, rows and tokens it holds at once."""

import math
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal

from benthic.errors import ConfigError

MAX_DRAFT_LEN = 8
DEFAULT_INTERVAL = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What one engine may use. Validated here; what depends on the model is checked by `Engine`."""

    max_num_seqs: int = 64
    """Requests that run at once; more wait, by priority and order of arrival."""
    max_batched_tokens: int = 2048
    """Rows of one pass at most."""
    prefill_chunk: int = 256
    """Prompt rows in a pass that also decodes, so that a long prompt does not hold up running answers."""
    admission_headroom: int = 256
    """Tokens that every running request may still grow by when a new one is admitted; less room, more retractions."""
    priority_aging_s: float = 30.0
    """Seconds of waiting that raise a request's priority by 1, so that no class starves another."""
    max_model_len: int | None = None
    """Prompt plus answer of one request, in tokens; None: the model's limit, or what `cache_bytes` can hold."""
    max_num_waiting: int = 100_000
    """Requests that may wait; more are refused."""
    request_timeout_s: float | None = None
    """A request that is not done this long after its arrival ends with an error; None: no limit. A request may ask
    for another."""
    stall_timeout_s: float = 300.0
    """An engine that is busy with one pass or call for this long, or owes something and shows no sign of life for this
    long, reports its state and is taken for dead."""
    cache_bytes: int | None = None
    """Memory for cached entries at most; None: what the machine has left. Less is taken where nothing needs more."""
    workspace_bytes: int = 256 << 20
    """Temporaries of attention and of the indexer at most, which would else grow with the context; at least 1 MiB. Less
    means more pieces, and the same bits."""
    cache_storage: Literal["wide", "official"] = "wide"
    """Cached entries in the activations' dtype, or in the released formats (fp8 and fp4: about half the bytes), which
    lose nothing under numerics "quantized"."""
    weights: Literal["wide", "native"] = "wide"
    """Weights as numbers of the activations' dtype; or in the released formats, multiplied as they are: a quarter of
    the bytes, for numerics "quantized" on CUDA. Native products add in an order of their own, so answers are those of
    wide weights up to rounding."""
    page_size: int = 128
    """Tokens of a cache page, the unit that prefixes share; a multiple of every compression ratio."""
    prefix_cache: bool = True
    """Whether prompts are continued from what earlier requests left in the cache."""
    retention: Literal["boundaries", "interval", "every_page", "none"] = "boundaries"
    """Where windows are kept, so that prompts can branch off there: at the ends of prompts and answers and where
    prompts parted (and every `retention_interval`); every `retention_interval`; at every page; nowhere. Models before
    V4 have no windows: prompts branch off at any page."""
    retention_interval: int | None = None
    """Tokens between windows kept inside long prompts, a multiple of `page_size`; None: 8192, or as near below as whole
    pages come."""
    overlap_steps: Literal[0, 1] | None = None
    """Passes in flight while the next is planned; None: 1 on an accelerator, 0 on CPU."""
    cuda_graphs: bool = True
    """Whether passes that only decode and verify are captured as CUDA graphs, before the first request, and replayed.
    Changes the speed and not one bit; without effect on CPU."""
    graph_rows: tuple[int, ...] | None = None
    """Rows of the passes that are captured, each an integer >= 1 and at most `max_batched_tokens`; a pass takes
    the least size that holds it. None: 1, 2, 4, 8 and further up to what `max_num_seqs` requests and their drafts
    take."""
    drafter: Literal["none", "ngram", "mtp"] = "none"
    """Who guesses tokens ahead for the model to verify: nobody, the text's own repetitions, or the model's prediction
    blocks. Changes the speed and not one token."""
    draft_len: int = 3
    """Tokens guessed ahead at most, 1 to 8."""
    draft_adaptive: bool = True
    """Whether fewer tokens are guessed where guesses prove wrong or passes costly."""
    keep_routes: bool = False
    """Whether pages remember the expert ids of their tokens, so that a request may ask for them."""
    keep_picks: bool = False
    """Whether pages remember the indexer's picks, likewise."""
    num_threads: int = 1
    """Intra-op threads of torch on CPU. The engine sets it: the bits of small products depend on it."""
    debug_checks: bool = False
    """Asserts the costly laws (conservation of pages, windows and rows) after every step."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_batched_tokens", "prefill_chunk", "max_num_waiting", "num_threads"):
            _require_integer(name, getattr(self, name))
        _require_integer("page_size", self.page_size)
        if self.retention_interval is not None:
            _require_integer("retention_interval", self.retention_interval)
        _require_integer("admission_headroom", self.admission_headroom, least=0)
        _require_integer("draft_len", self.draft_len, most=MAX_DRAFT_LEN)
        _require_integer("workspace_bytes", self.workspace_bytes, least=1 << 20)
        if self.cache_bytes is not None:
            _require_integer("cache_bytes", self.cache_bytes)
        if self.max_model_len is not None:
            _require_integer("max_model_len", self.max_model_len, least=2)
        _require_seconds("priority_aging_s", self.priority_aging_s)
        _require_seconds("stall_timeout_s", self.stall_timeout_s)
        if self.request_timeout_s is not None:
            _require_seconds("request_timeout_s", self.request_timeout_s)
        for item in fields(self):
            if item.type is bool and not isinstance(getattr(self, item.name), bool):
                raise ConfigError(f"{item.name} is {getattr(self, item.name)!r}; it must be True or False")
        self._check_graph_rows()
        self._check_choices()
        self._check_together()

    @property
    def window_interval(self) -> int:
        """Tokens between windows kept inside long prompts: as set, or derived from the page size."""
        if self.retention_interval is not None:
            return self.retention_interval
        return max(1, DEFAULT_INTERVAL // self.page_size) * self.page_size

    @property
    def max_draft_len(self) -> int:
        """Draft tokens of one pass of one request at most; 0 without a drafter."""
        return 0 if self.drafter == "none" else self.draft_len

    def _check_graph_rows(self) -> None:
        if self.graph_rows is None:
            return
        if not isinstance(self.graph_rows, tuple | list):
            raise ConfigError(f"graph_rows is {self.graph_rows!r}; it must be numbers of rows, such as (1, 8, 64)")
        if not self.graph_rows:
            raise ConfigError("graph_rows is empty; name a number of rows, or set cuda_graphs to false")
        for rows in self.graph_rows:
            _require_integer("graph_rows", rows)
        if max(self.graph_rows) > self.max_batched_tokens:
            raise ConfigError(
                f"graph_rows has {max(self.graph_rows)}; it must have at most max_batched_tokens "
                f"({self.max_batched_tokens}): no pass has more rows"
            )

    def _check_choices(self) -> None:
        choices: dict[str, tuple[object, ...]] = {
            "cache_storage": ("wide", "official"),
            "weights": ("wide", "native"),
            "retention": ("boundaries", "interval", "every_page", "none"),
            "overlap_steps": (None, 0, 1),
            "drafter": ("none", "ngram", "mtp"),
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            if isinstance(value, bool) or value not in allowed:
                raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}")

    def _check_together(self) -> None:
        if self.max_batched_tokens <= self.max_num_seqs:
            raise ConfigError(
                f"max_batched_tokens ({self.max_batched_tokens}) must be > max_num_seqs ({self.max_num_seqs}): "
                "a pass decodes one row of every running request and leaves room for prompts"
            )
        if self.retention_interval is not None and self.retention_interval % self.page_size:
            raise ConfigError(
                f"retention_interval ({self.retention_interval}) must be a multiple of page_size ({self.page_size}): "
                "windows are kept at the ends of pages"
            )


def _require_integer(name: str, value: object, least: int = 1, most: int | None = None) -> None:
    if isinstance(value, int) and not isinstance(value, bool) and value >= least and (most is None or value <= most):
        return
    allowed = f"an integer >= {least}" if most is None else f"an integer from {least} to {most}"
    raise ConfigError(f"{name} is {value!r}; it must be {allowed}")


def _require_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"{name} is {value!r}; it must be a finite number of seconds > 0")


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
