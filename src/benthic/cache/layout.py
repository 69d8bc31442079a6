"""What each layer of a model keeps of a token, as data: one record a layer, the same fields in every family.

    layer                       ratio  overlap  index  keeps
    V4, window                  0      no       0      kv rows of the window
    V4, CSA                     4      yes      128    and an entry, with its indexer key, for 4 tokens
    V4, HCA                     128    no       0      and an entry for 128 tokens
    V2, V3 (and V3's MTP)       1      no       0      an entry a token: [latent 512 | rotated key 64]
    V3.2 (and its MTP)          1      no       128    and an indexer key a token

An entry of one token is the token's own row: nothing is pending between passes, so there is no compressor, no ring and
no snapshot, and a model of such layers alone has no window either (`CacheGeometry.window` 0).
"""

from dataclasses import dataclass
from typing import Literal

from benthic.models.config import LayerSpec, ModelConfig

SNAPSHOT_ROWS = 4
"""Raw rows before a page boundary that the first overlapping block behind it reads."""

OVERLAP_RATIO = 4
"""The compression whose entries also read the block before theirs (CSA)."""

OfficialForm = Literal["v4", "v3.2"]
"""Released formats of rows and indexer keys in a cache (`kernels.kv_storage`)."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """What one layer stores; widths in numbers, 0 where the layer has none.

    `ratio` tokens make one entry; 0: none is made. `overlap`: an entry also reads the block before its own. `kv`: width
    of a window row and of an entry. `index`: width of an indexer key.
    """

    ratio: int
    overlap: bool
    kv: int
    index: int

    def __post_init__(self) -> None:
        # The snapshot holds SNAPSHOT_ROWS rows: it serves no longer block.
        assert not self.overlap or self.ratio == SNAPSHOT_ROWS, self
        assert self.ratio or not self.index, self

    @property
    def compresses(self) -> bool:
        """Whether an entry waits for more tokens than one: then the layer has a compressor, and rings."""
        return self.ratio > 1

    @property
    def raw(self) -> int:
        """Width of a raw compressor row: values | gates, for two series where entries overlap; the indexer's behind."""
        if not self.compresses:
            return 0
        return 4 * self.kv + 4 * self.index if self.overlap else 2 * self.kv

    @property
    def snapshot(self) -> int:
        """Width of the half of a raw row that the next block reads: the first series' values and gates."""
        return self.raw // 2 if self.overlap else 0

    @property
    def snapshot_columns(self) -> tuple[slice, ...]:
        """Where that half lies in a raw row."""
        if not self.overlap:
            return ()
        kv, index = self.kv, self.index
        columns = (slice(0, kv), slice(2 * kv, 3 * kv))
        if not index:
            return columns
        first = 4 * kv
        return (*columns, slice(first, first + index), slice(first + 2 * index, first + 3 * index))


def layer_caches(config: ModelConfig) -> tuple[LayerCache, ...]:
    """What the layers of a model store: main layers, then MTP blocks."""
    return tuple(_layer_cache(config, spec) for spec in (*config.layers, *config.mtp_layers))


def official_form(config: ModelConfig) -> OfficialForm | None:
    """The format that keeps every bit of what a model rounds; None where it rounds no entries (V2, V3).

    V3.2's format has powers of two as scales, so a checkpoint with other ones has none.
    """
    if not config.is_latent:
        return "v4"
    rounds_entries = any(spec.has_index for spec in config.layers) and config.scale_dtype == "ue8m0"
    return "v3.2" if rounds_entries else None


def _layer_cache(config: ModelConfig, spec: LayerSpec) -> LayerCache:
    return LayerCache(
        ratio=spec.ratio,
        overlap=spec.ratio == OVERLAP_RATIO,
        kv=config.entry_dim,
        index=config.index_head_dim if spec.has_index else 0,
    )
