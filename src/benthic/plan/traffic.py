"""Bytes that one token moves from memory, by part: its share of the weights that its pass reads, and its state.

A pass reads every matrix once for all its rows, and of the experts those that its rows reach. A decoded token reads
its own conversation; the rows of a prompt's chunk read together what lies behind them, and each writes its own entries.
"""

from benthic.models.config import ModelConfig
from benthic.plan.sizing import Sizing
from benthic.plan.state import PASS_ROWS
from benthic.plan.weights import Holding, touched_share

CORE, SCORES = "attention core", "index scores"


def decode_traffic(sizing: Sizing, context: int, concurrency: int) -> dict[str, float]:
    """Of token number `context` of each of `concurrency` conversations that are decoded together."""
    parts = _weights(sizing.config, sizing.held, concurrency)
    for one in sizing.costs.lookups:
        rows, keys = one.decode_rows(context), one.decode_keys(context)
        parts[CORE] = parts.get(CORE, 0.0) + one.layers * rows * one.row.kv
        if one.top_k:
            parts[SCORES] = parts.get(SCORES, 0.0) + one.layers * keys * one.row.index
    return parts


def prefill_traffic(sizing: Sizing, context: int) -> dict[str, float]:
    """Of a token of a prompt of `context` tokens that runs in chunks, averaged over its positions."""
    chunk = min(PASS_ROWS, context)
    parts = _weights(sizing.config, sizing.held, chunk)
    for one in sizing.costs.lookups:
        # A chunk reads half the prompt's entries on average, and its window's rows.
        entries = context / 2 / one.ratio if one.ratio else 0.0
        rows = (entries + min(one.window, context)) / chunk + (1 / one.ratio if one.ratio else 0.0)
        keys = (entries / chunk + 1 / one.ratio) if one.top_k else 0.0
        parts[CORE] = parts.get(CORE, 0.0) + one.layers * rows * one.row.kv
        if one.top_k:
            parts[SCORES] = parts.get(SCORES, 0.0) + one.layers * keys * one.row.index
    return parts


def _weights(config: ModelConfig, held: tuple[Holding, ...], rows: int) -> dict[str, float]:
    """A row's share; of the embedding, its own row."""
    parts: dict[str, float] = {}
    for item in held:
        if item.part == "embedding":
            share = 1 / config.vocab_size
        elif item.part == "MTP":
            continue
        else:
            share = (touched_share(config, rows) if item.split == "expert" else 1) / rows
        parts[item.part] = parts.get(item.part, 0.0) + item.num_bytes * share
    return parts
