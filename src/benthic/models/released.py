"""The released models by name: configurations that need no file."""

from dataclasses import replace

from benthic.errors import ConfigError
from benthic.models.config import ModelConfig, Yarn

_V4_YARN = Yarn(factor=16.0, original_max_position_embeddings=65536, beta_fast=32.0, beta_slow=1.0)

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
    rope_scaling=_V4_YARN,
    max_position_embeddings=1048576,
    moe_intermediate_size=2048,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=6,
    routed_scaling_factor=1.5,
    num_hash_layers=3,
    swiglu_limit=10.0,
)

PRO = replace(
    FLASH,
    hidden_size=7168,
    num_hidden_layers=61,
    num_attention_heads=128,
    q_lora_rank=1536,
    o_groups=16,
    compress_ratios=(128, 128, *(4, 128) * 29, 4, 0),
    index_topk=1024,
    moe_intermediate_size=3072,
    n_routed_experts=384,
    routed_scaling_factor=2.5,
)

_V3_YARN = Yarn(40.0, 4096, 32.0, 1.0, mscale=1.0, mscale_all_dim=1.0)

V3 = ModelConfig(
    model_type="deepseek_v3",
    vocab_size=129280,
    hidden_size=7168,
    num_hidden_layers=61,
    num_attention_heads=128,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    rope_theta=10000,
    rope_scaling=_V3_YARN,
    max_position_embeddings=163840,
    intermediate_size=18432,
    first_k_dense_replace=3,
    moe_intermediate_size=2048,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    routed_scaling_factor=2.5,
    scoring_func="sigmoid",
    n_group=8,
    topk_group=4,
    hc_mult=1,
    expert_dtype="fp8",
    scale_dtype="fp32",
)

V31 = replace(V3, scale_dtype="ue8m0")

V32 = replace(V31, model_type="deepseek_v32", index_n_heads=64, index_head_dim=128, index_topk=2048)

V2 = replace(
    V3,
    model_type="deepseek_v2",
    vocab_size=102400,
    hidden_size=5120,
    num_hidden_layers=60,
    rope_scaling=replace(_V3_YARN, mscale=0.707, mscale_all_dim=0.707),
    intermediate_size=12288,
    first_k_dense_replace=1,
    moe_intermediate_size=1536,
    n_routed_experts=160,
    n_shared_experts=2,
    num_experts_per_tok=6,
    routed_scaling_factor=16.0,
    scoring_func="softmax",
    topk_method="group_limited_greedy",
    topk_group=3,
    norm_topk_prob=False,
    num_nextn_predict_layers=0,
    expert_dtype="bf16",
    weight_dtype="bf16",
    scale_dtype="ue8m0",
    bos_token_id=100000,
    eos_token_id=100001,
)

V2_LITE = replace(
    V2,
    hidden_size=2048,
    num_hidden_layers=27,
    num_attention_heads=16,
    q_lora_rank=0,
    intermediate_size=10944,
    moe_intermediate_size=1408,
    n_routed_experts=64,
    routed_scaling_factor=1.0,
    topk_method="greedy",
    n_group=1,
    topk_group=1,
)

KNOWN: dict[str, ModelConfig] = {
    "deepseek-v2": V2,
    "deepseek-v2-lite": V2_LITE,
    "deepseek-v3": V3,
    "deepseek-r1": V3,
    "deepseek-v3.1": V31,
    "deepseek-v3.2": V32,
    "deepseek-v4-flash": FLASH,
    "deepseek-v4-pro": PRO,
}


def released_name(name: str) -> str:
    """`deepseek-ai/DeepSeek-V4-Flash` and other letter cases -> `deepseek-v4-flash`; unknown names likewise."""
    return name.lower().removeprefix("deepseek-ai/")


def known_config(name: str) -> ModelConfig:
    """The configuration of a released model by name. Raises ConfigError for a name that is none."""
    key = released_name(name)
    if key not in KNOWN:
        raise ConfigError(f"{name!r} is not the name of a released model; known are {', '.join(sorted(KNOWN))}")
    return KNOWN[key]
