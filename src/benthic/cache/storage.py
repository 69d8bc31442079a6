"""In which form kv rows, entries and indexer keys lie in the pools: as the model computes them, or as released.

Chosen once. Attention takes either form and widens what it gathers (`kernels.kv_storage`).
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from benthic.cache.geometry import CacheGeometry
from benthic.cache.layout import LayerCache, OfficialForm
from benthic.errors import ConfigError
from benthic.kernels.kv_storage import KeyForm, PackedIndex, PackedKv, index_bytes, kv_bytes, pack_index, pack_kv

Storage = Literal["wide", "official"]


class KeyStorage(Protocol):
    """How rows lie in a buffer."""

    @property
    def form(self) -> KeyForm | None:
        """The released format; None for rows as they are computed."""
        ...

    @property
    def element(self) -> torch.dtype:
        """Dtype of the buffers."""
        ...

    def kv_width(self, layer: LayerCache) -> int:
        """Elements of a kv row or entry."""
        ...

    def index_width(self, layer: LayerCache) -> int:
        """Elements of an indexer key; 0 if the layer has none."""
        ...

    def pack_kv(self, rows: Tensor) -> Tensor:
        """Rows [n, d] as they lie in the buffer: [n, kv_width]."""
        ...

    def pack_index(self, keys: Tensor) -> Tensor:
        """Keys [n, di] likewise."""
        ...

    def kv_keys(self, buffer: Tensor, layer: LayerCache) -> Tensor | PackedKv:
        """A buffer as attention takes it."""
        ...

    def index_keys(self, buffer: Tensor, layer: LayerCache) -> Tensor | PackedIndex:
        """A buffer of indexer keys likewise."""
        ...


@dataclass(frozen=True, slots=True)
class WideStorage:
    """Every number in the activations' dtype."""

    element: torch.dtype
    form: None = None

    def kv_width(self, layer: LayerCache) -> int:
        """See `KeyStorage`."""
        return layer.kv

    def index_width(self, layer: LayerCache) -> int:
        """See `KeyStorage`."""
        return layer.index

    def pack_kv(self, rows: Tensor) -> Tensor:
        """See `KeyStorage`."""
        return rows

    def pack_index(self, keys: Tensor) -> Tensor:
        """See `KeyStorage`."""
        return keys

    def kv_keys(self, buffer: Tensor, layer: LayerCache) -> Tensor:
        """See `KeyStorage`."""
        return buffer

    def index_keys(self, buffer: Tensor, layer: LayerCache) -> Tensor:
        """See `KeyStorage`."""
        return buffer


@dataclass(frozen=True, slots=True)
class OfficialStorage:
    """A released format: FP8 kv rows with their rotary dims in `dtype`, FP4 (V4) or FP8 (V3.2) indexer keys.

    Nothing is lost of what "quantized" computes.
    """

    dtype: torch.dtype
    rope_dim: int
    form: OfficialForm
    element: torch.dtype = torch.uint8

    def kv_width(self, layer: LayerCache) -> int:
        """See `KeyStorage`."""
        return kv_bytes(layer.kv, self.rope_dim, self.dtype, self.form)

    def index_width(self, layer: LayerCache) -> int:
        """See `KeyStorage`."""
        return index_bytes(layer.index, self.form) if layer.index else 0

    def pack_kv(self, rows: Tensor) -> Tensor:
        """See `KeyStorage`."""
        return pack_kv(rows, self.rope_dim, self.form)

    def pack_index(self, keys: Tensor) -> Tensor:
        """See `KeyStorage`."""
        return pack_index(keys, self.form)

    def kv_keys(self, buffer: Tensor, layer: LayerCache) -> PackedKv:
        """See `KeyStorage`."""
        return PackedKv(buffer, layer.kv, self.rope_dim, self.dtype, self.form)

    def index_keys(self, buffer: Tensor, layer: LayerCache) -> PackedIndex:
        """See `KeyStorage`."""
        return PackedIndex(buffer, layer.index, self.dtype, self.form)


def key_storage(storage: Storage, geometry: CacheGeometry, dtype: torch.dtype, numerics: str) -> KeyStorage:
    """The storage of that name for rows that a model computes in `dtype`.

    Raises:
        ConfigError: it would round what the model does not.
    """
    if storage == "wide":
        return WideStorage(dtype)
    if numerics != "quantized":
        raise ConfigError(
            f"cache_storage is {storage!r} and numerics is {numerics!r}: the official formats would round keys that "
            "the model does not; take cache_storage 'wide', or numerics 'quantized'"
        )
    if geometry.official_form is None:
        raise ConfigError(
            f"cache_storage is {storage!r} and no released format keeps this model's entries: V4 has one, and V3.2 "
            "where its scales are powers of two; take cache_storage 'wide'"
        )
    return OfficialStorage(dtype, geometry.rope_dim, geometry.official_form)
