"""What a step must move: bytes of one layer of V4-Flash, and the time that they take at copy speed.

Everything but bytes is perfect here. Weights are FP8, `wo_a` and the compressors bf16, routed experts FP4 with their
scales; a row of the kv cache is 584 bytes, an indexer key 68. All experts are on this device.
"""

from benthic.models.config import LayerSpec, ModelConfig

BYTES_PER_US = 4.3e6
"""Copy speed of one H200, read and write together: 4.3 TB/s."""
KV_ROW = 584
INDEX_ROW = 68
FP4 = 17 / 32
"""Bytes of a weight with its share of a scale."""


def layer_floor(config: ModelConfig, spec: LayerSpec, rows: int, context: int) -> dict[str, float]:
    """Microseconds at least, by part, for one pass of single rows that each have `context` tokens behind them."""
    parts = {
        "projections": _projections(config),
        "activations": rows * 312_000.0,
        "compressor": _compressor(config, spec.ratio),
        "index": _index(config, rows, context) if spec.has_index else 0.0,
        "attention": rows * KV_ROW * float(keys_read(config, spec, context)),
        "streams": 2 * (rows * 20 * config.hidden_size + 4 * 24 * 4 * config.hidden_size),
        "shared": 3.0 * config.hidden_size * config.moe_intermediate_size
        + 2 * config.n_routed_experts * config.hidden_size,
        "experts": experts_hit(config, rows) * 3 * config.hidden_size * config.moe_intermediate_size * FP4,
    }
    return {name: value / BYTES_PER_US for name, value in parts.items()}


def keys_read(config: ModelConfig, spec: LayerSpec, context: int) -> int:
    """Keys of one row: its window, and what its layer shows it behind."""
    behind = context // spec.ratio if spec.ratio else 0
    return min(config.sliding_window, context) + (min(behind, config.index_topk) if spec.has_index else behind)


def experts_hit(config: ModelConfig, rows: int) -> float:
    """Experts that rows of random routes touch, on average."""
    share = config.num_experts_per_tok / config.n_routed_experts
    return config.n_routed_experts * (1 - (1 - share) ** rows)


def head_floor(config: ModelConfig) -> float:
    """Microseconds of the output head, in bf16."""
    return 2 * config.vocab_size * config.hidden_size / BYTES_PER_US


def _projections(c: ModelConfig) -> float:
    query = c.num_attention_heads * c.head_dim
    narrow = (c.q_lora_rank + c.head_dim) * c.hidden_size + query * c.q_lora_rank
    return float(narrow + c.o_groups * c.o_lora_rank * (c.hidden_size + 2 * query // c.o_groups))


def _compressor(c: ModelConfig, ratio: int) -> float:
    if not ratio:
        return 0.0
    width = 4 * c.head_dim + 4 * c.index_head_dim if ratio == 4 else 2 * c.head_dim
    return 2.0 * width * c.hidden_size


def _index(c: ModelConfig, rows: int, context: int) -> float:
    weights = c.index_n_heads * (c.index_head_dim * c.q_lora_rank + 2 * c.hidden_size)
    return weights + rows * (context // 4) * float(INDEX_ROW)
