"""What a token reads of its conversation: for each kind of layer, how many rows, at what cost in FLOP and in bytes.

One token attends to the window's rows and to entries, one of each `ratio` tokens; an indexer, where there is one,
scores all entries and leaves `top_k` of them. Multiply and add count as two operations. Only products are counted:
softmax, norms and rotations are small beside them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benthic.cache.layout import LayerCache
from benthic.models.config import ModelConfig
from benthic.plan.hardware import Format
from benthic.plan.rows import RowBytes
from benthic.plan.weights import Split


@dataclass(frozen=True, slots=True)
class Work:
    """Products of one token in one part of the model: how many operations, in which format, how TP divides them."""

    part: str
    flops: float
    form: Format
    split: Split


@dataclass(frozen=True, slots=True)
class Lookup:
    """How `layers` layers of one kind read a conversation.

    `ratio` tokens make one entry (0: none); the last `window` tokens are read in full; of the entries the best `top_k`
    are read (0: all). Every of `heads` heads multiplies with a row's `key_dim` numbers and then with `value_dim`.
    """

    layers: int
    ratio: int
    window: int
    top_k: int
    heads: int
    key_dim: int
    value_dim: int
    index_heads: int
    index_dim: int
    row: RowBytes

    def decode_rows(self, context: int) -> float:
        """Rows that token number `context` attends to, itself included."""
        return (
            min(context, self.window) + min(context // self.ratio, self._cap) if self.ratio else self._window(context)
        )

    def decode_keys(self, context: int) -> float:
        """Indexer keys that it scores."""
        return context // self.ratio if self.top_k else 0

    def mean_rows(self, context: int) -> float:
        """Rows that a token attends to, averaged over tokens 1 to `context`."""
        window = _sum_of_least(context, 1, self.window)
        entries = _sum_of_least(context, self.ratio, self._cap) if self.ratio else 0
        return (window + entries) / context

    def mean_keys(self, context: int) -> float:
        """Indexer keys that it scores, averaged likewise."""
        return _sum_of_least(context, self.ratio, context) / context if self.top_k else 0

    def works(self, rows: float, keys: float) -> tuple[Work, ...]:
        """Products of all layers of this kind for a token that attends to `rows` rows and scores `keys` keys."""
        core = 2 * self.layers * self.heads * (self.key_dim + self.value_dim) * rows
        scores = 2 * self.layers * self.index_heads * self.index_dim * keys
        found = [Work("attention core", core, "bf16", "cut")]
        if self.top_k:
            found.append(Work("index scores", scores, self.row.index_form, "whole"))
        return tuple(found)

    def read_bytes(self, context: int) -> float:
        """Bytes of rows and indexer keys that token number `context` reads."""
        rows, keys = self.decode_rows(context), self.decode_keys(context)
        return self.layers * (rows * self.row.kv + keys * self.row.index)

    @property
    def _cap(self) -> int:
        return self.top_k or 1 << 62

    def _window(self, context: int) -> int:
        return min(context, self.window)


def lookups(config: ModelConfig, layers: Sequence[LayerCache], row: RowBytes) -> tuple[Lookup, ...]:
    """How the layers that keep `layers` read them, alike ones together."""
    return tuple(_lookup(config, kind, count, row) for kind, count in Counter(layers).items())


def _lookup(config: ModelConfig, kind: LayerCache, count: int, row: RowBytes) -> Lookup:
    return Lookup(
        layers=count,
        ratio=kind.ratio,
        window=config.sliding_window,
        top_k=config.index_topk if kind.index else 0,
        heads=config.num_attention_heads,
        key_dim=config.entry_dim,
        value_dim=config.value_dim,
        index_heads=config.index_n_heads if kind.index else 0,
        index_dim=kind.index,
        row=row,
    )


def _sum_of_least(count: int, ratio: int, cap: int) -> int:
    """The sum of min(cap, n // ratio) over n from 1 to `count`."""
    full = count // ratio
    if full <= cap:
        return ratio * full * (full - 1) // 2 + full * (count % ratio + 1)
    return ratio * cap * (cap - 1) // 2 + cap * (count - cap * ratio + 1)
