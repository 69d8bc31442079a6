"""Facts of papers that no configuration holds: what DeepSeek 67B's cache was, and in how many bits V2 was served."""

from benthic.plan.costs import Costs
from benthic.plan.lookups import Lookup, Work
from benthic.plan.rows import RowBytes

SERVED_CACHE_BITS: dict[str, float] = {"deepseek-v2": 6.0}
"""Average bits of a cached number where a paper serves other ones than the engine's formats: DeepSeek-V2, 3.2.3."""


def deepseek_67b() -> Costs:
    """DeepSeek LLM 67B (2024): dense, grouped-query attention, bf16 keys and values; table 2 of its paper."""
    layers, dim, width, vocab = 95, 8192, 22016, 102400
    heads, kv_heads, head_dim = 64, 8, 128
    attention = layers * (2 * dim * heads * head_dim + 2 * dim * kv_heads * head_dim)
    mlp = layers * 3 * dim * width
    row = RowBytes(2 * kv_heads * head_dim * 2, 0, "bf16")
    return Costs(
        name="deepseek-67b",
        max_context=4096,
        parameters=attention + mlp + 2 * vocab * dim,
        active_parameters=attention + mlp + vocab * dim,
        products=(
            Work("attention", 2 * attention, "bf16", "cut"),
            Work("dense MLP", 2 * mlp, "bf16", "cut"),
            Work("head", 2 * vocab * dim, "bf16", "cut"),
        ),
        lookups=(Lookup(layers, 1, 0, 0, heads, head_dim, head_dim, 0, 0, row),),
        token_bytes=layers * row.kv,
    )
