"""The released models by name: configurations that need no file."""

from benthic.errors import ConfigError
from benthic.models.config import ModelConfig, Yarn

_YARN = Yarn(factor=16.0, original_max_position_embeddings=65536, beta_fast=32.0, beta_slow=1.0)

FLASH = ModelConfig(
    vocab_size=129280,
    hidden_size=4096,
    num_hidden_layers=43,
    num_attention_heads=64,
    head_dim=512,
    qk_rope_head_dim=64,
    q_lora_rank=1024,
    o_groups=8,
    o_lora_rank=1024,
    sliding_window=128,
    compress_ratios=(0, 0, *(4, 128) * 20, 4, 0),
    index_n_heads=64,
    index_head_dim=128,
    index_topk=512,
    rope_theta=10000,
    compress_rope_theta=160000,
    rope_scaling=_YARN,
    max_position_embeddings=1048576,
    moe_intermediate_size=2048,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=6,
    routed_scaling_factor=1.5,
    num_hash_layers=3,
    swiglu_limit=10.0,
)

PRO = ModelConfig(
    vocab_size=129280,
    hidden_size=7168,
    num_hidden_layers=61,
    num_attention_heads=128,
    head_dim=512,
    qk_rope_head_dim=64,
    q_lora_rank=1536,
    o_groups=16,
    o_lora_rank=1024,
    sliding_window=128,
    compress_ratios=(128, 128, *(4, 128) * 29, 4, 0),
    index_n_heads=64,
    index_head_dim=128,
    index_topk=1024,
    rope_theta=10000,
    compress_rope_theta=160000,
    rope_scaling=_YARN,
    max_position_embeddings=1048576,
    moe_intermediate_size=3072,
    n_routed_experts=384,
    n_shared_experts=1,
    num_experts_per_tok=6,
    routed_scaling_factor=2.5,
    num_hash_layers=3,
    swiglu_limit=10.0,
)

KNOWN: dict[str, ModelConfig] = {"deepseek-v4-flash": FLASH, "deepseek-v4-pro": PRO}


def released_name(name: str) -> str:
    """`deepseek-ai/DeepSeek-V4-Flash` and other letter cases -> `deepseek-v4-flash`; unknown names likewise."""
    return name.lower().removeprefix("deepseek-ai/")


def known_config(name: str) -> ModelConfig:
    """The configuration of a released model by name. Raises ConfigError for a name that is none."""
    key = released_name(name)
    if key not in KNOWN:
        raise ConfigError(f"{name!r} is not the name of a released model; known are {', '.join(sorted(KNOWN))}")
    return KNOWN[key]
