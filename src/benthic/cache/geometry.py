"""Sizes of the cache: what a layer stores for a token, and what follows from page size, window and draft length.

A page is P tokens. One page id addresses every compressed pool: entry w of ratio r of a sequence lies in its page
w*r // P, at slot page_id * (P//r) + w % (P//r). A window id addresses the window pool (kv rows of P tokens, all
layers) and the snapshot pool. Id 0 of both is the null id: its slots hold zeros and nobody owns it. A request row
owns its compressor rings. Widths: model.md 2.4 to 2.6.
"""

from dataclasses import dataclass

from benthic.errors import ConfigError
from benthic.models.config import ModelConfig

SNAPSHOT_ROWS = 4
"""Raw rows before a page boundary that the first overlapping block behind it reads."""

OVERLAP_RATIO = 4
"""The compression whose entries also read the block before theirs (CSA)."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """What one layer stores; widths in numbers, 0 where the layer has none.

    `ratio` tokens make one compressed entry. `overlap`: an entry also reads the block before its own. `kv`: width of a
    window row and of an entry. `index`: width of an indexer key.
    """

    ratio: int
    overlap: bool
    kv: int
    index: int

    @property
    def raw(self) -> int:
        """Width of a raw compressor row: values | gates, for two series where entries overlap; the indexer's behind."""
        if not self.ratio:
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


@dataclass(frozen=True, slots=True)
class CacheGeometry:
    """Shape of a model's cache.

    Args:
        page_size: P, tokens a page: a multiple of every ratio.
        window: W, tokens that a query reads in full, itself included.
        layers: main layers, then MTP blocks.
        num_main_layers: how many of `layers` are main layers.
        max_draft_len: most drafts verified at once; 0 without speculation.
        rope_dim: how many of a kv row's last dims rotate.

    Raises:
        ConfigError: no such cache can be built.
    """

    page_size: int
    window: int
    layers: tuple[LayerCache, ...]
    num_main_layers: int
    max_draft_len: int = 0
    rope_dim: int = 0

    def __post_init__(self) -> None:
        if self.page_size < SNAPSHOT_ROWS:
            raise ConfigError(f"page_size is {self.page_size}; it must be >= {SNAPSHOT_ROWS} tokens")
        for ratio in self.ratios:
            if self.page_size % ratio:
                raise ConfigError(
                    f"page_size is {self.page_size}; it must be a multiple of every compression ratio, here {ratio}"
                )
        if self.max_draft_len < 0:
            raise ConfigError(f"max_draft_len is {self.max_draft_len}; it must be >= 0")
        assert self.window >= 1, self.window
        assert 1 <= self.num_main_layers <= len(self.layers), (self.num_main_layers, len(self.layers))
        for layer in self.layers:
            # The snapshot holds SNAPSHOT_ROWS rows: it serves no longer block.
            assert not layer.overlap or layer.ratio == SNAPSHOT_ROWS, layer

    @property
    def ratios(self) -> tuple[int, ...]:
        """The compression ratios that occur, ascending."""
        return tuple(sorted({layer.ratio for layer in self.layers if layer.ratio}))

    @property
    def window_pages(self) -> int:
        """Pages that the window before a page boundary reaches into."""
        return -(-self.window // self.page_size)

    @property
    def replay_len(self) -> int:
        """Tokens to run before a boundary so that the last W window rows of every layer, and the output, are exact.

        Each layer's first W - 1 rows read a window that is not there, so exactness begins W - 1 later a layer.
        """
        layers = len(self.layers) if self.max_draft_len else self.num_main_layers
        return layers * (self.window - 1) + 1

    def min_ring_len(self, ratio: int) -> int:
        """Fewest ring rows that are safe when up to `max_draft_len` rows of a pass may be rejected.

        A block reads window_c rows. Every pass commits at least one of its d = max_draft_len + 1 rows and gathers
        history before it writes, so the oldest row still needed is window_c - 1 back while d - 2 rejected ones lie
        ahead of the next start.
        """
        overlap = any(layer.overlap for layer in self.layers if layer.ratio == ratio)
        block_rows = 2 * ratio if overlap else ratio
        return block_rows + self.max_draft_len - 1

    def ring_len(self, ratio: int) -> int:
        """Rows of a compressor ring: the least safe number, rounded up to whole blocks."""
        return -(-self.min_ring_len(ratio) // ratio) * ratio

    def entries_per_page(self, ratio: int) -> int:
        """Compressed entries of that ratio in one page."""
        return self.page_size // ratio

    def num_pages(self, length: int) -> int:
        """Pages that `length` tokens begin."""
        return -(-length // self.page_size)


@dataclass(frozen=True, slots=True)
class CacheCapacity:
    """How much a cache holds: usable ids, the null ids come on top.

    `num_pages` pages of compressed entries, `num_windows` window pages, `num_rows` requests at once, each of up to
    `max_len` tokens.
    """

    num_pages: int
    num_windows: int
    num_rows: int
    max_len: int

    def __post_init__(self) -> None:
        assert min(self.num_pages, self.num_windows, self.num_rows, self.max_len) >= 1, self


def geometry(config: ModelConfig, *, page_size: int = 128, max_draft_len: int = 0) -> CacheGeometry:
    """The cache of a model.

    Args:
        page_size: P in tokens.
        max_draft_len: most drafts verified at once.

    Raises:
        ConfigError: `page_size` is no multiple of the model's ratios.
    """
    layers = tuple(
        LayerCache(
            ratio=spec.ratio,
            overlap=spec.ratio == OVERLAP_RATIO,
            kv=config.head_dim,
            index=config.index_head_dim if spec.ratio == OVERLAP_RATIO else 0,
        )
        for spec in (*config.layers, *config.mtp_layers)
    )
    return CacheGeometry(
        page_size, config.sliding_window, layers, len(config.layers), max_draft_len, config.qk_rope_head_dim
    )
