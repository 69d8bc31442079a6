"""A model under one set of choices: its weights, its cache, its costs. Everything else is reckoned from these."""

from dataclasses import dataclass
from typing import get_args

from benthic.errors import ConfigError
from benthic.models.checkpoint.table import Weights
from benthic.models.config import ModelConfig
from benthic.plan.costs import Costs, costs_of
from benthic.plan.rows import CACHE_FORMATS, CacheFormat, has_official_cache
from benthic.plan.state import Draft, State, planned_config, state_of
from benthic.plan.subject import Subject
from benthic.plan.weights import Holding, holdings


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """In which formats weights and cache are held, and whether MTP blocks draft."""

    weights: Weights = "official"
    cache: CacheFormat = "bf16"
    draft: Draft = "none"


@dataclass(frozen=True, slots=True)
class Sizing:
    """`config` has MTP blocks only where they draft; `held`, `state` and `costs` follow from it and `formats`."""

    subject: Subject
    formats: Formats
    config: ModelConfig
    held: tuple[Holding, ...]
    state: State
    costs: Costs

    @property
    def weight_bytes(self) -> int:
        """All weights, as files hold them."""
        return sum(item.num_bytes for item in self.held)


def formats_for(subject: Subject, weights: str, cache: str | None, draft: str) -> Formats:
    """Checks words; `cache` None is the family's own format, or bf16 where it has none.

    Raises:
        ConfigError: no such format, or MTP is asked of a model that has none.
    """
    for name, value, known in (
        ("weights' format", weights, get_args(Weights)),
        ("cache format", cache, (None, *CACHE_FORMATS)),
        ("draft", draft, get_args(Draft)),
    ):
        if value not in known:
            raise ConfigError(
                f"the {name} is {value!r}; it must be one of {', '.join(word for word in known if word is not None)}"
            )
    if draft == "mtp" and not subject.config.num_nextn_predict_layers:
        raise ConfigError(f"the draft is 'mtp' and {subject.name} has no MTP block; it must be none here")
    if cache is None:
        cache = "official" if has_official_cache(subject.config) else "bf16"
    return Formats(
        weights=next(word for word in get_args(Weights) if word == weights),
        cache=next(word for word in CACHE_FORMATS if word == cache),
        draft="mtp" if draft == "mtp" else "none",
    )


def size(subject: Subject, formats: Formats) -> Sizing:
    """The model under those choices.

    Raises:
        ConfigError, CheckpointError: it cannot be held so.
    """
    config = planned_config(subject.config, formats.draft)
    held, state = holdings(config, formats.weights), state_of(config, formats.cache, formats.draft)
    return Sizing(subject, formats, config, held, state, costs_of(subject.name, config, held, state))
