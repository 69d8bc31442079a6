"""Random small models of several shapes, sharp enough that a wrong bit changes tokens.

Pages of 16 tokens need models without HCA; where a window is short, replay is shorter than a page and happens often.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch

from benthic.engine.config import EngineConfig
from benthic.engine.cpu import prepare_products
from benthic.models.checkpoint import dummy_model
from benthic.models.config import ModelConfig
from benthic.models.transformer import Transformer
from tests.engine.conftest import CONFIG
from tests.exactness.places import Place, current, options


@dataclass(frozen=True)
class Shape:
    """A model and the page size it is served with."""

    config: ModelConfig
    page_size: int
    seed: int

    @property
    def replay_len(self) -> int:
        """Tokens that a replay runs through the main layers."""
        return self.config.num_hidden_layers * (self.config.sliding_window - 1) + 1


def _shape(ratios: tuple[int, ...], window: int, page_size: int, seed: int, **changes: int) -> Shape:
    config = replace(
        CONFIG,
        num_hidden_layers=len(ratios),
        compress_ratios=(*ratios, 0),
        sliding_window=window,
        num_hash_layers=min(1, len(ratios) - 1),
        **changes,
    )
    return Shape(config, page_size, seed)


SHAPES = {
    "all kinds": _shape((0, 4, 128, 4), 128, 128, 3),
    "pages of 16": _shape((0, 4, 4), 8, 16, 4, index_topk=6),
    "window only": _shape((0, 0), 20, 16, 5),
    "heavy, short window": _shape((128, 128), 60, 128, 6, num_attention_heads=2),
    "window of no whole pages": _shape((4, 128, 4), 40, 128, 7, head_dim=16, index_head_dim=8),
}


def cases(values: Iterable[Any], by_default: Iterable[Any]) -> list[Any]:
    """All values as cases of a test, those that are not named at night only: every shape, depth and size costs time."""
    chosen = list(by_default)
    return [_case(value, [] if value in chosen else [pytest.mark.nightly]) for value in values]


def _case(value: Any, marks: list[pytest.MarkDecorator]) -> Any:
    """A tuple is a case of several arguments."""
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=marks)


def model_of(name: str) -> Transformer:
    """The model of a shape at the test's place; its weights must not be changed."""
    return _kept_model(name, current())


@cache
def _kept_model(name: str, place: Place) -> Transformer:
    shape = SHAPES[name]
    prepare_products(1)
    model = dummy_model(shape.config, seed=shape.seed, **options())
    with torch.no_grad():
        for parameter, weight in model.named_parameters():
            if weight.ndim >= 2 and "hc_" not in parameter:
                weight.mul_(6.0)
    return model.freeze()


def engine_config(name: str, **changes: object) -> EngineConfig:
    """Budgets for a shape, with every law checked after every step."""
    given: dict[str, object] = {
        "page_size": SHAPES[name].page_size,
        "retention_interval": SHAPES[name].page_size * 64,
        "cache_bytes": 1 << 26,
        "debug_checks": True,
    }
    return EngineConfig(**{**given, **changes})  # type: ignore[arg-type]
