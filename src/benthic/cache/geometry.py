"""Sizes of the cache: what follows from the layers' layout, page size, window and draft length.

A page is P tokens. One page id addresses every compressed pool: entry w of ratio r of a sequence lies in its page
w*r // P, at slot page_id * (P//r) + w % (P//r). A window id addresses the window pool (kv rows of P tokens, all
layers) and the snapshot pool. Id 0 of both is the null id: its slots hold zeros and nobody owns it. A request row
owns its compressor rings. Widths: model.md 2.4 to 2.6, family.md 3 and 5.

A model whose layers all make an entry of every token (ratio 1) has no windows: W is 0, there are no window ids, no
rings and no snapshots, and a sequence can go on from any page boundary.
"""

from dataclasses import dataclass

from benthic.cache.layout import SNAPSHOT_ROWS, LayerCache, OfficialForm, layer_caches, official_form
from benthic.errors import ConfigError
from benthic.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class CacheGeometry:
    """Shape of a model's cache.

    Args:
        page_size: P, tokens a page: a multiple of every ratio.
        window: W, tokens that a query reads in full, itself included; 0 where all layers have ratio 1.
        layers: main layers, then MTP blocks.
        num_main_layers: how many of `layers` are main layers.
        max_draft_len: most drafts verified at once; 0 without speculation.
        rope_dim: how many of a kv row's last dims rotate.
        official_form: the released format of the model's rows and keys, if there is one.

    Raises:
        ConfigError: no such cache can be built.
    """

    page_size: int
    window: int
    layers: tuple[LayerCache, ...]
    num_main_layers: int
    max_draft_len: int = 0
    rope_dim: int = 0
    official_form: OfficialForm | None = "v4"

    def __post_init__(self) -> None:
        least = SNAPSHOT_ROWS if any(layer.overlap for layer in self.layers) else 1
        if self.page_size < least:
            raise ConfigError(f"page_size is {self.page_size}; it must be >= {least} tokens")
        for ratio in self.ratios:
            if self.page_size % ratio:
                raise ConfigError(
                    f"page_size is {self.page_size}; it must be a multiple of every compression ratio, here {ratio}"
                )
        if self.max_draft_len < 0:
            raise ConfigError(f"max_draft_len is {self.max_draft_len}; it must be >= 0")
        assert 1 <= self.num_main_layers <= len(self.layers), (self.num_main_layers, len(self.layers))
        assert self.window >= 0, self.window
        # Rows that a compressor still needs, and tokens of no entry, are reached through windows alone.
        assert self.window or all(layer.ratio == 1 for layer in self.layers), self.layers

    @property
    def ratios(self) -> tuple[int, ...]:
        """The ratios of layers that make entries, ascending."""
        return tuple(sorted({layer.ratio for layer in self.layers if layer.ratio}))

    @property
    def layer_ratios(self) -> tuple[int, ...]:
        """The ratios of all layers, ascending: 0 too, where a layer makes no entries."""
        return tuple(sorted({layer.ratio for layer in self.layers}))

    @property
    def window_pages(self) -> int:
        """Pages that the window before a page boundary reaches into; 0 without windows."""
        return -(-self.window // self.page_size)

    @property
    def replay_len(self) -> int:
        """Tokens to run before a boundary so that the last W window rows of every layer, and the output, are exact.

        Each layer's first W - 1 rows read a window that is not there, so exactness begins W - 1 later a layer.
        Without windows there is nothing to restore: 0.
        """
        if not self.window:
            return 0
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
        """Rows of a compressor ring: the least safe number and one more, rounded up to whole blocks.

        With that one a pass may also write all its rows before it gathers, as captured passes do.
        """
        return -(-(self.min_ring_len(ratio) + 1) // ratio) * ratio

    def entries_per_page(self, ratio: int) -> int:
        """Compressed entries of that ratio in one page."""
        return self.page_size // ratio

    def num_pages(self, length: int) -> int:
        """Pages that `length` tokens begin."""
        return -(-length // self.page_size)


@dataclass(frozen=True, slots=True)
class CacheCapacity:
    """How much a cache holds: usable ids, the null ids come on top.

    `num_pages` pages of entries, `num_windows` window pages (0 for a model without windows, and only then),
    `num_rows` requests at once, each of up to `max_len` tokens.
    """

    num_pages: int
    num_windows: int
    num_rows: int
    max_len: int

    def __post_init__(self) -> None:
        assert min(self.num_pages, self.num_rows, self.max_len) >= 1 and self.num_windows >= 0, self

    @property
    def num_page_ids(self) -> int:
        """Pages with the null page."""
        return self.num_pages + 1

    @property
    def num_window_ids(self) -> int:
        """Windows with the null window, which is there only where others are."""
        return self.num_windows + 1 if self.num_windows else 0


def geometry(config: ModelConfig, *, page_size: int = 128, max_draft_len: int = 0) -> CacheGeometry:
    """The cache of a model.

    Args:
        page_size: P in tokens.
        max_draft_len: most drafts verified at once.

    Raises:
        ConfigError: `page_size` is no multiple of the model's ratios.
    """
    return CacheGeometry(
        page_size,
        config.sliding_window,
        layer_caches(config),
        len(config.layers),
        max_draft_len,
        config.qk_rope_head_dim,
        official_form(config),
    )
