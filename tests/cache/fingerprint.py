"""A stand-in for the model whose every number is an exact hash, and a brute-force evaluator of whole sequences.

Each layer maps a row's value to a hash of itself, of every window row and of every compressed entry that it may read;
entries hash the raw rows of their block. Numbers are integers below a prime < 2^24, so float32 pools keep them
exactly, and one wrong, missing, stale or surplus row anywhere changes the values of all rows that read it.

The model reads the cache through `AttentionContext` and `KeyTiles` as the real one does. The evaluator knows neither:
it computes a sequence from its tokens alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benthic.cache.geometry import CacheGeometry, geometry
from benthic.kernels.sparse_attention import KeyTiles, TilePlan
from benthic.models.config import LayerSpec, ModelConfig, Yarn
from benthic.models.context import AttentionContext, Rows
from benthic.models.numerics import Numerics

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

PRIME = 16_777_213
KV, GATE, ENTRY, INDEX_ENTRY, WINDOW_KEY, ENTRY_KEY, ROW, EMBED, NEXT, LUCK = range(1, 11)


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintConfig(ModelConfig):
    """Sizes that no released model has: ratios 4 and 16, a window of 8; or ratio 1 and no window."""

    indexes_tokens: bool = False
    """Whether layers of ratio 1 keep indexer keys."""

    def __post_init__(self) -> None:
        """Anything goes."""

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        return tuple(self._spec(ratio) for ratio in self.compress_ratios)

    @property
    def mtp_layers(self) -> tuple[LayerSpec, ...]:
        return (self._spec(0 if self.sliding_window else 1),) * self.num_nextn_predict_layers

    def _spec(self, ratio: int) -> LayerSpec:
        return LayerSpec(ratio, "bias", has_index=ratio == 4 or (ratio == 1 and self.indexes_tokens))


def config(
    *,
    ratios: tuple[int, ...] = (0, 4, 16, 4),
    window: int = 8,
    vocab_size: int = 61,
    num_mtp: int = 1,
    indexes_tokens: bool = False,
) -> FingerprintConfig:
    return FingerprintConfig(
        vocab_size=vocab_size, hidden_size=2, num_hidden_layers=len(ratios), num_attention_heads=1, head_dim=2,
        qk_rope_head_dim=2, q_lora_rank=1, o_groups=1, o_lora_rank=1, sliding_window=window, compress_ratios=ratios,
        index_n_heads=1, index_head_dim=1, index_topk=1, rope_theta=1e4, compress_rope_theta=1e4,
        rope_scaling=Yarn(1.0, 4096), max_position_embeddings=4096, moe_intermediate_size=1, n_routed_experts=1,
        n_shared_experts=1, num_experts_per_tok=1, routed_scaling_factor=1.0, num_hash_layers=0, swiglu_limit=1.0,
        num_nextn_predict_layers=num_mtp, indexes_tokens=indexes_tokens,
    )  # fmt: skip


def latent_config(family: str, *, vocab_size: int = 61) -> FingerprintConfig:
    """The layout of V2 (no block that drafts), V3 (one) or V3.2 (with indexer keys)."""
    return config(
        ratios=(1, 1, 1),
        window=0,
        vocab_size=vocab_size,
        num_mtp=0 if family == "V2" else 1,
        indexes_tokens=family == "V3.2",
    )


def digest(value: Ints, *keys: int | Ints) -> Ints:
    """A number below PRIME for each element, changed by every key; products stay below 2^63."""
    keyed: int | Ints = 32_452_843
    for place, key in enumerate(keys):
        keyed = keyed + key * (15_485_863 + 2_097_593 * place)
    out = (value * 7919 + keyed) % PRIME
    out = (out * out + 3 * out) % PRIME
    return (out * (out + 49_979_687)) % PRIME


class FingerprintModel:
    """A `ServingModel`. Streams are float32 [R, 2]: the row's hash, and the token that a lucky guess starts from.

    Its one weight is a number that every hash takes in.
    """

    device = torch.device("cpu")
    dtype = torch.float32
    min_rows = 1
    numerics = Numerics("plain")

    def __init__(self, config: FingerprintConfig) -> None:
        self.config = config
        self.kinds = geometry(config, page_size=16).layers
        self._weight = torch.zeros(1)

    @property
    def version(self) -> int:
        return int(self._weight)

    @version.setter
    def version(self, version: int) -> None:
        self._weight = torch.tensor([float(version)])

    def state_dict(self, *, keep_vars: bool = False) -> dict[str, Tensor]:
        return {"weight": self._weight}

    def freeze(self) -> "FingerprintModel":
        return self

    def __call__(self, rows: Rows, context: AttentionContext, trace: object = None) -> Tensor:
        tokens = rows.token_ids.numpy()
        value = digest(tokens, rows.positions.numpy(), self.version, EMBED)
        for layer in range(self.config.num_hidden_layers):
            value = self._layer(layer, value, context)
        return stored(np.stack([value, tokens], axis=1))

    def hidden(self, streams: Tensor) -> Tensor:
        return streams

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [R, V], largest at the next token."""
        value, token = read(hidden).T
        best = next_token(value, token, self.config.vocab_size)
        return -stored((np.arange(self.config.vocab_size) - best[:, None]) % self.config.vocab_size)

    def mtp_forward(
        self, depth: int, streams: Tensor, next_ids: Tensor, context: AttentionContext, trace: object = None
    ) -> Tensor:
        tokens = next_ids.numpy()
        value = digest(read(streams)[:, 0], tokens, self.version, EMBED)
        value = self._layer(self.config.num_hidden_layers + depth, value, context)
        return stored(np.stack([value, tokens], axis=1))

    def mtp_hidden(self, depth: int, streams: Tensor) -> Tensor:
        return streams

    def _layer(self, layer: int, value: Ints, context: AttentionContext) -> Ints:
        kind = self.kinds[layer]
        index_keys = None
        if kind.ratio == 1:
            own = value[: context.rows.num_rows]
            keys = context.write_entries(layer, stored(columns(own, kind.kv, layer, ENTRY)))
            if kind.index:
                index_keys = context.write_index(layer, stored(columns(own, kind.index, layer, INDEX_ENTRY)))
        else:
            keys = context.write_window(layer, stored(columns(value, kind.kv, layer, KV)))
        if kind.compresses:
            raw = context.write_raw(layer, stored(columns(value, kind.raw, layer, GATE)))
            entries, index_entries = self._entries(layer, raw, context)
            keys = context.write_entries(layer, entries)
            if kind.index:
                index_keys = context.write_index(layer, index_entries)
        window, behind = read_plan(context.plan(kind.ratio), keys, index_keys)
        return digest(value, window, behind, layer, ROW)

    def _entries(self, layer: int, raw: Tensor, context: AttentionContext) -> tuple[Tensor | None, Tensor | None]:
        kind = self.kinds[layer]
        blocks = context.completed(kind.ratio)
        if blocks is None:
            return None, None
        found = read(raw[blocks.sources])
        if blocks.first is not None:
            absent = blocks.first.numpy() & (np.arange(found.shape[1])[:, None] < kind.ratio)
            found = np.where(absent, 0, found)
        entries = stored(pool(found, 0, kind.kv, kind.ratio, ENTRY))
        if not kind.index:
            return entries, None
        return entries, stored(pool(found, 4 * kind.kv, kind.index, kind.ratio, INDEX_ENTRY))


def stored(numbers: Ints) -> Tensor:
    """As the pools keep them: float32, exact below 2^24."""
    return torch.from_numpy(numbers.astype(np.float32))


def read(rows: Tensor) -> Ints:
    """Stored numbers; what is not finite becomes some number or other, and is found by comparison."""
    return rows.numpy().astype(np.int64)


def next_token(value: Ints, token: Ints, vocab_size: int) -> Ints:
    """The token after a row: three times of four it follows from the row's own, so that drafts can be right."""
    lucky = digest(value, LUCK) % 4 != 0
    return np.where(lucky, (token * 5 + 3) % vocab_size, digest(value, NEXT) % vocab_size)


def columns(value: Ints, count: int, layer: int, purpose: int) -> Ints:
    """[R] -> [R, count]."""
    return digest(value[:, None], np.arange(count), layer, purpose)


def pool(found: Ints, first: int, width: int, ratio: int, purpose: int) -> Ints:
    """Entries [m, width] of raw rows [m, S, raw], from the columns of one compressor."""
    if found.shape[1] == ratio:
        values, gates = (found[..., at : at + width] for at in (first, first + width))
    else:
        values, gates = (
            np.concatenate([found[:, :ratio, at : at + width], found[:, ratio:, at + width : at + 2 * width]], axis=1)
            for at in (first, first + 2 * width)
        )
    place = np.arange(found.shape[1])[:, None]
    return digest(values + 1_000_003 * gates, place, purpose).sum(1) % PRIME


def read_plan(plan: TilePlan, keys: Tensor, index_keys: Tensor | None) -> tuple[Ints, Ints]:
    """Sums over visible window rows and visible entries for every row of the pass, int64 [R] each."""
    groups = [read_tiles(tiles, keys.numpy(), index_keys) for tiles in plan.groups]
    order = plan.order.numpy()
    window, behind = (np.concatenate(parts)[order] for parts in zip(*groups, strict=True))
    return window, behind


def read_tiles(tiles: KeyTiles, keys: Floats, index_keys: Tensor | None) -> tuple[Ints, Ints]:
    position, sequence = tiles.positions.numpy(), tiles.sequence.numpy()
    key = position[..., None] - np.arange(tiles.window)
    held = np.maximum(key, 0)
    page = tiles.window_table.numpy()[sequence[:, None, None], held // tiles.window_page]
    found = keys[page * tiles.window_page + held % tiles.window_page].astype(np.int64)
    window = (digest(found[..., 0] + 1_000_003 * found[..., 1], key, WINDOW_KEY) * (key >= 0)).sum(-1) % PRIME
    if tiles.entry_table is None or tiles.max_visible == 0:
        return window.reshape(-1), np.zeros(window.size, np.int64)
    entry = np.arange(tiles.max_visible)
    page = tiles.entry_table.numpy()[sequence[:, None], entry // tiles.entry_page]
    slots = page * tiles.entry_page + entry % tiles.entry_page
    found = keys[tiles.entry_base + slots].astype(np.int64)
    value = found[..., 0] + 1_000_003 * found[..., 1]
    if index_keys is not None:
        value = value + 5_000_011 * index_keys.numpy()[slots][..., 0].astype(np.int64)
    sums = np.zeros((len(value), tiles.max_visible + 1), np.int64)
    np.cumsum(digest(value, entry, ENTRY_KEY), axis=1, out=sums[:, 1:])
    behind = np.take_along_axis(sums, (position + 1) // tiles.ratio, axis=1) % PRIME
    return window.reshape(-1), behind.reshape(-1)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What every layer must hold for a sequence of n tokens: int64, layer by layer.

    `window[l]` [n, kv], `raw[l]` [n, raw], `entries[l]` [n // ratio, kv], `index[l]` [n // ratio, index];
    `value` [n]: the rows' hashes after the last layer; `next_tokens` [n].
    """

    window: list[Ints]
    raw: list[Ints]
    entries: list[Ints]
    index: list[Ints]
    value: Ints
    next_tokens: Ints


def evaluate(config: FingerprintConfig, tokens: Sequence[int], version: int = 0) -> Evaluation:
    """Computes a whole sequence by brute force, from the definition."""
    ids = np.array(tokens, dtype=np.int64)
    position = np.arange(len(ids))
    value = digest(ids, position, version, EMBED)
    out = Evaluation([], [], [], [], value, ids)
    for layer, kind in enumerate(geometry(config, page_size=16).layers[: config.num_hidden_layers]):
        window = columns(value, kind.kv, layer, KV)
        raw = columns(value, kind.raw, layer, GATE)
        key = position[:, None] - np.arange(config.sliding_window)
        row = window[np.maximum(key, 0)]
        seen = (digest(row[..., 0] + 1_000_003 * row[..., 1], key, WINDOW_KEY) * (key >= 0)).sum(1)
        if kind.ratio == 1:
            entries = columns(value, kind.kv, layer, ENTRY)
            index = columns(value, kind.index, layer, INDEX_ENTRY)
            behind = _seen(entries, index, 1, len(ids))
        else:
            entries, index, behind = _compress(raw, kind.ratio, kind.kv, kind.index)
        out.window.append(window)
        out.raw.append(raw)
        out.entries.append(entries)
        out.index.append(index)
        value = digest(value, seen % PRIME, behind, layer, ROW)
    return Evaluation(out.window, out.raw, out.entries, out.index, value, next_token(value, ids, config.vocab_size))


def generate(config: FingerprintConfig, prompt: Sequence[int], count: int, version: int = 0) -> list[int]:
    """The `count` tokens that greedy decoding gives after a prompt."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(evaluate(config, tokens, version).next_tokens[-1]))
    return tokens[len(prompt) :]


def _compress(raw: Ints, ratio: int, kv: int, index: int) -> tuple[Ints, Ints, Ints]:
    """Entries, indexer keys, and for each row the sum over the entries that it sees."""
    length = len(raw)
    if not ratio:
        return np.zeros((0, kv), np.int64), np.zeros((0, index), np.int64), np.zeros(length, np.int64)
    count = length // ratio
    entries = _pool(raw, ratio, 0, kv, 2 if ratio == 4 else 1, ENTRY, count)
    keys = _pool(raw, ratio, 4 * kv, index, 2, INDEX_ENTRY, count)
    return entries, keys, _seen(entries, keys, ratio, length)


def _seen(entries: Ints, keys: Ints, ratio: int, length: int) -> Ints:
    """For each row the sum over the entries that it sees."""
    value = entries[:, 0] + 1_000_003 * entries[:, 1]
    if keys.shape[1]:
        value = value + 5_000_011 * keys[:, 0]
    sums = np.concatenate([[0], digest(value, np.arange(len(entries)), ENTRY_KEY).cumsum() % PRIME])
    return sums[(np.arange(length) + 1) // ratio]


def _pool(raw: Ints, ratio: int, first: int, width: int, num_series: int, purpose: int, count: int) -> Ints:
    """The meaning: with two series, place s of the block before gives the first and place s of the own the second."""
    own = raw[: count * ratio].reshape(count, ratio, raw.shape[1])
    before = np.concatenate([np.zeros((1, *own.shape[1:]), np.int64), own])[:count]
    gates = first + num_series * width
    out = np.zeros((count, width), np.int64)
    for series, rows in enumerate((before, own)[-num_series:]):
        values = rows[..., first + series * width : first + (series + 1) * width]
        weights = rows[..., gates + series * width : gates + (series + 1) * width]
        place = series * ratio + np.arange(ratio)[:, None]
        out += digest(values + 1_000_003 * weights, place, purpose).sum(1)
    return out % PRIME


def geometry_of(config: FingerprintConfig, *, page_size: int = 16, max_draft_len: int = 0) -> CacheGeometry:
    """The cache of a stand-in model."""
    return geometry(config, page_size=page_size, max_draft_len=max_draft_len)
