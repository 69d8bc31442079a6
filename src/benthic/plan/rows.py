"""How many bytes a row, an entry and an indexer key take, and in which format index scores are computed.

The engine's own storage classes say so (`cache.storage`): what is planned is what the pools hold.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from benthic.cache.geometry import CacheGeometry
from benthic.cache.layout import official_form
from benthic.cache.storage import KeyStorage, key_storage
from benthic.errors import ConfigError
from benthic.models.config import ModelConfig
from benthic.plan.hardware import Format

CacheFormat = Literal["official", "bf16", "fp32"]
CACHE_FORMATS: tuple[CacheFormat, ...] = ("official", "bf16", "fp32")
TORCH: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class RowBytes:
    """`kv`: a window row or an entry; `index`: an indexer key, 0 without; `index_form`: of its scores."""

    kv: float
    index: float
    index_form: Format


def has_official_cache(config: ModelConfig) -> bool:
    """Whether a released format keeps what the model computes (V3.2, V4)."""
    return official_form(config) is not None


def storage_of(config: ModelConfig, geometry: CacheGeometry, form: CacheFormat) -> KeyStorage:
    """The engine's storage of that format.

    Raises:
        ConfigError: the family has no official format.
    """
    if form != "official":
        return key_storage("wide", geometry, TORCH[form], "plain")
    if not has_official_cache(config):
        raise ConfigError(
            f"the cache format is 'official' and the model a {config.model_type}, which has none; it must be bf16 or "
            "fp32 here"
        )
    return key_storage("official", geometry, torch.bfloat16, "quantized")


def row_bytes(storage: KeyStorage, geometry: CacheGeometry) -> RowBytes:
    """Bytes of the layers' rows in that storage; layers of one model have rows of one width."""
    size = storage.element.itemsize
    [kv] = {storage.kv_width(layer) * size for layer in geometry.layers}
    indexed = [layer for layer in geometry.layers if layer.index]
    if not indexed:
        return RowBytes(kv, 0, "bf16")
    [index] = {storage.index_width(layer) * size for layer in indexed}
    bits = 8 * index / indexed[0].index
    forms: tuple[tuple[float, Format], ...] = ((8, "fp4"), (16, "fp8"), (32, "bf16"))
    return RowBytes(kv, index, next((form for limit, form in forms if bits < limit), "fp32"))
