"""What the cache holds for a model: block kinds, widths of stored rows, and how many blocks a budget buys.

Three kinds of block, each of 64 rows, each with its own ids:

    ratio 0 (window)   one row a token: kv of every layer and the compressors' raw rows; only the tokens that a later
                       token can still read are kept
    ratio 4 (CSA)      one row per 4 tokens: compressed entries and indexer keys; kept for the request's life
    ratio 128 (HCA)    one row per 128 tokens: compressed entries; kept for the request's life

In a layer's kv buffer the window blocks come first and the entry blocks of its ratio follow, so that attention reads
one buffer. Widths: model specification, sections 2.4 to 2.6.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from benthic.errors import ConfigError
from benthic.models.config import ModelConfig

BLOCK_SIZE = 64
WINDOW = 0
CSA = 4
RAW_BYTES = 4


@dataclass(frozen=True, slots=True)
class LayerWidths:
    """Numbers stored a row in one layer; 0 where the layer has no such buffer. Raw rows are fp32."""

    ratio: int
    kv: int
    raw: int
    index: int


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Buffers and block counts of one engine's cache."""

    layers: tuple[LayerWidths, ...]
    """Main layers, then MTP blocks."""
    num_blocks: Mapping[int, int]
    """Usable blocks by kind (ratio); the null block comes on top."""
    kept_len: int
    """How many of the latest tokens the next one may read as window or raw rows, itself included."""
    max_model_len: int
    num_bytes: int


def plan_layout(
    config: ModelConfig,
    *,
    max_num_seqs: int,
    max_batched_tokens: int,
    max_model_len: int | None,
    cache_bytes: int,
    entry_bytes: int,
) -> CacheLayout:
    """Sizes a cache: window blocks so that they never run short, entry blocks for as many full contexts as fit.

    Args:
        max_model_len: None takes the model's limit, halved until one context fits.
        cache_bytes: memory at most; less is taken where `max_num_seqs` full contexts need less.
        entry_bytes: bytes of one stored number in the activations' dtype.

    Raises:
        ConfigError: the budget does not hold one context of `max_model_len`.
    """
    layers = _layer_widths(config)
    kept_len = _kept_len(config)
    num_window = max_num_seqs * (_blocks(kept_len) + 2) + _blocks(max_batched_tokens)
    limit = config.max_position_embeddings
    if max_model_len is not None and max_model_len > limit:
        raise ConfigError(f"max_model_len ({max_model_len}) must be <= the model's max_position_embeddings ({limit})")

    def counts(num_seqs: int, length: int) -> dict[int, int]:
        ratios = sorted({layer.ratio for layer in layers if layer.ratio})
        # Beside the full contexts, one partly filled block for every running request.
        return {WINDOW: num_window} | {r: num_seqs * blocks_for(length, r) + max_num_seqs for r in ratios}

    def price(num_seqs: int, length: int) -> int:
        return _num_bytes(layers, counts(num_seqs, length), entry_bytes)

    length = limit if max_model_len is None else max_model_len
    while max_model_len is None and length > BLOCK_SIZE and price(1, length) > cache_bytes:
        length //= 2
    if price(1, length) > cache_bytes:
        raise ConfigError(
            f"cache_bytes ({cache_bytes}) must be >= {price(1, length)} to hold one context of {length} tokens beside "
            f"the windows of {max_num_seqs} requests; raise it, or lower max_num_seqs or max_model_len"
        )
    num_seqs = max_num_seqs
    while num_seqs > 1 and price(num_seqs, length) > cache_bytes:
        num_seqs -= 1
    return CacheLayout(layers, counts(num_seqs, length), kept_len, length, price(num_seqs, length))


def blocks_for(num_tokens: int, ratio: int) -> int:
    """Blocks of a kind that hold the rows of `num_tokens` tokens (for entries: of the completed ones)."""
    return _blocks(num_tokens // ratio if ratio else num_tokens)


def _blocks(num_rows: int) -> int:
    return -(-num_rows // BLOCK_SIZE)


def _kept_len(config: ModelConfig) -> int:
    """The window, or what a compressor still reads: CSA entries overlap, so they read two blocks of raw rows."""
    return max(config.sliding_window, *(2 * CSA if layer.ratio == CSA else layer.ratio for layer in config.layers))


def _layer_widths(config: ModelConfig) -> tuple[LayerWidths, ...]:
    head, index = config.head_dim, config.index_head_dim
    raw = {0: 0, CSA: 4 * head + 4 * index}
    return tuple(
        LayerWidths(spec.ratio, head, raw.get(spec.ratio, 2 * head), index if spec.ratio == CSA else 0)
        for spec in config.layers + config.mtp_layers
    )


def _num_bytes(layers: tuple[LayerWidths, ...], counts: Mapping[int, int], entry_bytes: int) -> int:
    """Bytes of all buffers, null blocks included."""
    total = 0
    for layer in layers:
        window, entries = counts[WINDOW] + 1, counts[layer.ratio] + 1 if layer.ratio else 0
        total += (window + entries) * layer.kv * entry_bytes + window * layer.raw * RAW_BYTES
        total += entries * layer.index * entry_bytes
    return total * BLOCK_SIZE
