"""The families that one `ModelConfig` describes: which keys of config.json each has, as data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from benthic.errors import ConfigError
from benthic.models import config_dialects, config_latent

ModelType = Literal["deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4"]


@dataclass(frozen=True, slots=True)
class Family:
    """`architecture` in the words of transformers; `written` keys of a config.json, and `fixed` ones with their values.

    `read` turns a parsed config.json into constructor fields of `ModelConfig`.
    """

    architecture: str
    written: tuple[str, ...]
    fixed: Mapping[str, Any]
    read: Callable[[Mapping[str, Any]], dict[str, Any]]


_COMMON = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "qk_rope_head_dim", "q_lora_rank",
    "rope_theta", "rope_scaling", "max_position_embeddings", "moe_intermediate_size", "n_routed_experts",
    "n_shared_experts", "num_experts_per_tok", "routed_scaling_factor",
)  # fmt: skip
_OPTIONAL = (
    "num_nextn_predict_layers", "rms_norm_eps", "initializer_range", "bos_token_id", "eos_token_id",
)  # fmt: skip
_INDEX = ("index_n_heads", "index_head_dim", "index_topk")
_HYBRID = (
    "head_dim", "o_groups", "o_lora_rank", "sliding_window", "compress_ratios", *_INDEX, "compress_rope_theta",
    "num_hash_layers", "swiglu_limit",
)  # fmt: skip
_HYBRID_OPTIONAL = ("hc_mult", "hc_sinkhorn_iters", "hc_eps", "expert_dtype")
_LATENT = ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
_GATE = (
    "intermediate_size", "first_k_dense_replace", "moe_layer_freq", "scoring_func", "topk_method", "n_group",
    "topk_group", "norm_topk_prob",
)  # fmt: skip


def _latent(architecture: str, model_type: ModelType, gate: Mapping[str, Any], own: tuple[str, ...] = ()) -> Family:
    required = (*_COMMON, *_LATENT, *own)
    optional = tuple(name for name in (*_GATE, *_OPTIONAL) if model_type != "deepseek_v2" or "nextn" not in name)
    needed = [name for name in required if name not in ("rope_scaling", "q_lora_rank")]
    # V3's file states its groups and dense layers; without them it would be another function, and no error would tell.
    needed += [] if model_type == "deepseek_v2" else ["first_k_dense_replace", "n_group", "topk_group"]
    read = partial(
        config_latent.read_latent,
        plain_fields=(*required, *optional),
        required=needed,
        model_type=model_type,
        gate=gate,
    )
    return Family(architecture, (*required, *optional), config_latent.FIXED, read)


_HYBRID_NEEDED = [name for name in (*_COMMON, *_HYBRID) if name != "rope_scaling"]

FAMILIES: Mapping[str, Family] = {
    "deepseek_v2": _latent(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        {"scoring_func": "softmax", "topk_method": "greedy", "norm_topk_prob": False},
    ),
    "deepseek_v3": _latent(
        "DeepseekV3ForCausalLM", "deepseek_v3", {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    ),
    "deepseek_v32": _latent(
        "DeepseekV32ForCausalLM", "deepseek_v32", {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}, _INDEX
    ),
    "deepseek_v4": Family(
        "DeepseekV4ForCausalLM",
        (*_COMMON, *_HYBRID, *_HYBRID_OPTIONAL, *_OPTIONAL),
        {
            name: value
            for name, value in config_dialects.FIXED.items()
            if name not in ("mlp_bias", "num_key_value_heads")
        },
        partial(
            config_dialects.read_hybrid,
            plain_fields=(*_COMMON, *_HYBRID, *_HYBRID_OPTIONAL, *_OPTIONAL),
            required=_HYBRID_NEEDED,
        ),
    ),
}


def family_of(raw: Mapping[str, Any]) -> Family:
    """The family of a parsed config.json; one without a model_type is a DeepSeek-V4. Raises ConfigError."""
    model_type = raw.get("model_type", "deepseek_v4")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ConfigError(f"model_type is {model_type!r}; {', '.join(sorted(FAMILIES))} can be read")
    return FAMILIES[model_type]
