"""Which values of a `ModelConfig` describe a model: checked once, when the record is made.

The record is `Any` here, since its module imports this one.
"""

import math
from dataclasses import fields
from typing import Any

from benthic.errors import ConfigError
from benthic.models.config_dialects import MOST_MTP_BLOCKS

Law = tuple[bool, str, str]

_MAY_BE_ZERO = frozenset(
    {
        "bos_token_id", "compress_rope_theta", "eos_token_id", "first_k_dense_replace", "head_dim", "index_head_dim",
        "index_n_heads", "index_topk", "intermediate_size", "kv_lora_rank", "num_hash_layers",
        "num_nextn_predict_layers", "o_groups",
        "o_lora_rank", "q_lora_rank", "qk_nope_head_dim", "sliding_window", "v_head_dim",
    }
)  # fmt: skip

MOST = {"num_hidden_layers": 4096, "num_nextn_predict_layers": MOST_MTP_BLOCKS, "n_routed_experts": 65_536}
"""Counts beyond these are no model, and what lists their layers and experts would never end."""

_HYBRID_SIZES = (
    "q_lora_rank",
    "compress_rope_theta",
    "head_dim",
    "o_groups",
    "o_lora_rank",
    "sliding_window",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
)
_LATENT_SIZES = ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")


def check_types(config: Any) -> None:
    """Raises ConfigError for a field of another type than it declares."""
    for field in fields(config):
        value, kind = getattr(config, field.name), str(getattr(field.type, "__name__", field.type))
        if kind == "int" and (isinstance(value, bool) or not isinstance(value, int)):
            raise ConfigError(f"{field.name} is {value!r}; a whole number is needed")
        if kind == "float" and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(f"{field.name} is {value!r}; a number is needed")
        if kind == "bool" and not isinstance(value, bool):
            raise ConfigError(f"{field.name} is {value!r}; true or false is needed")


def check_yarn(yarn: Any) -> None:
    """Raises ConfigError for a `Yarn` that scales nothing sensibly."""
    for field in fields(yarn):
        value = getattr(yarn, field.name)
        if value is None and field.name in ("mscale", "mscale_all_dim"):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(f"rope_scaling has {field.name} {value!r}; a finite number is needed")
        least = 1 if field.name in ("factor", "original_max_position_embeddings") else 0
        if value < least:
            raise ConfigError(f"rope_scaling has {field.name} {value!r}; it must be at least {least}")
    if not isinstance(yarn.original_max_position_embeddings, int):
        found = yarn.original_max_position_embeddings
        raise ConfigError(f"rope_scaling has original_max_position_embeddings {found!r}; a whole number is needed")
    if not yarn.beta_fast > yarn.beta_slow > 0:
        raise ConfigError(
            f"rope_scaling has beta_fast {yarn.beta_fast!r} and beta_slow {yarn.beta_slow!r}; "
            "they must be above 0, beta_fast the larger"
        )


def check_values(config: Any) -> None:
    """Raises ConfigError for values that describe no model."""
    may_be_zero = _MAY_BE_ZERO.difference(_LATENT_SIZES if config.is_latent else _HYBRID_SIZES)
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not math.isfinite(value) and field.name != "swiglu_limit":
            raise ConfigError(f"{field.name} is {value}; it must be finite")
        if value > MOST.get(field.name, math.inf):
            raise ConfigError(f"{field.name} is {value}; it must be at most {MOST[field.name]:,}")
        if not value >= (0 if field.name in may_be_zero else 1e-30):
            least = "at least 0" if field.name in may_be_zero else "above 0"
            raise ConfigError(f"{field.name} is {value}; it must be {least}")
    own = _latent_laws(config) if config.is_latent else _hybrid_laws(config)
    for holds, found, wanted in (*own, *_common_laws(config)):
        if not holds:
            raise ConfigError(f"{found}; it must be {wanted}")


def _common_laws(c: Any) -> tuple[Law, ...]:
    return (
        (c.qk_rope_head_dim % 2 == 0, f"qk_rope_head_dim is {c.qk_rope_head_dim}", "even"),
        (
            not c.index_topk or c.qk_rope_head_dim <= c.index_head_dim,
            f"index_head_dim is {c.index_head_dim}",
            ">= qk_rope_head_dim",
        ),
        (
            c.num_experts_per_tok <= c.n_routed_experts,
            f"num_experts_per_tok is {c.num_experts_per_tok}",
            f"<= n_routed_experts ({c.n_routed_experts})",
        ),
        (c.bos_token_id < c.vocab_size, f"bos_token_id is {c.bos_token_id}", f"below vocab_size ({c.vocab_size})"),
        (c.eos_token_id < c.vocab_size, f"eos_token_id is {c.eos_token_id}", f"below vocab_size ({c.vocab_size})"),
    )


def _hybrid_laws(c: Any) -> tuple[Law, ...]:
    ratios, beyond = c.compress_ratios[: c.num_hidden_layers], c.compress_ratios[c.num_hidden_layers :]
    return (
        (math.isfinite(c.swiglu_limit), f"swiglu_limit is {c.swiglu_limit}", "the clamp of the experts' inner values"),
        (len(ratios) == c.num_hidden_layers, f"compress_ratios has {len(ratios)} entries", "one for each main layer"),
        (set(ratios) <= {0, 4, 128}, f"compress_ratios is {list(ratios)}", "0, 4 or 128 for each layer"),
        (not any(beyond), f"compress_ratios ends in {list(beyond)}", "0 for each MTP block"),
        (c.num_hash_layers <= c.num_hidden_layers, f"num_hash_layers is {c.num_hash_layers}", "<= num_hidden_layers"),
        (
            c.num_attention_heads % c.o_groups == 0,
            f"o_groups is {c.o_groups}",
            "a divisor of num_attention_heads",
        ),
        (c.qk_rope_head_dim <= c.head_dim, f"qk_rope_head_dim is {c.qk_rope_head_dim}", f"<= head_dim ({c.head_dim})"),
        (c.n_shared_experts == 1, f"n_shared_experts is {c.n_shared_experts}", "1, as in every DeepSeek-V4"),
        (c.n_group == 1, f"n_group is {c.n_group}", "1: DeepSeek-V4 limits no groups"),
        (c.scoring_func == "sqrtsoftplus", f"scoring_func is {c.scoring_func!r}", "'sqrtsoftplus' in a DeepSeek-V4"),
        (c.topk_method == "noaux_tc", f"topk_method is {c.topk_method!r}", "'noaux_tc' in a DeepSeek-V4"),
        (c.expert_dtype in ("fp4", "fp8"), f"expert_dtype is {c.expert_dtype!r}", "'fp4' or 'fp8'"),
    )


def _latent_laws(c: Any) -> tuple[Law, ...]:
    has_dense = any(layer.mlp == "dense" for layer in c.layers)
    is_v2, has_index = c.model_type == "deepseek_v2", c.model_type == "deepseek_v32"
    scores = ("softmax",) if is_v2 else ("sigmoid",)
    methods = ("greedy", "group_limited_greedy") if is_v2 else ("noaux_tc",)
    return (
        (c.hc_mult == 1, f"hc_mult is {c.hc_mult}", f"1: {c.model_type} has one residual stream"),
        (
            not c.compress_ratios,
            f"compress_ratios is {c.compress_ratios}",
            "empty: latent attention compresses nothing",
        ),
        (c.scoring_func in scores, f"scoring_func is {c.scoring_func!r}", " or ".join(map(repr, scores))),
        (c.topk_method in methods, f"topk_method is {c.topk_method!r}", " or ".join(map(repr, methods))),
        (
            not is_v2 or c.num_nextn_predict_layers == 0,
            f"num_nextn_predict_layers is {c.num_nextn_predict_layers}",
            "0: a DeepSeek-V2 has no MTP block",
        ),
        (
            (c.index_topk > 0) == has_index
            and (c.index_n_heads > 0) == has_index
            and (c.index_head_dim > 0) == has_index,
            f"index_topk is {c.index_topk}, index_n_heads {c.index_n_heads}, index_head_dim {c.index_head_dim}",
            "above 0 in deepseek_v32 and 0 in its ancestors",
        ),
        (not has_dense or c.intermediate_size > 0, "intermediate_size is 0", "above 0: some layers are dense"),
        (
            not (is_v2 and c.norm_topk_prob),
            "norm_topk_prob is True",
            "false: no DeepSeek-V2 was released with true, and implementations disagree on what it would mean",
        ),
        (
            is_v2 or c.n_group == 1 or 2 * c.n_group <= c.n_routed_experts,
            f"n_group is {c.n_group}",
            "at most half of n_routed_experts: the two best experts of a group rank it",
        ),
        (c.n_routed_experts % c.n_group == 0, f"n_group is {c.n_group}", "a divisor of n_routed_experts"),
        (c.topk_group <= c.n_group, f"topk_group is {c.topk_group}", f"<= n_group ({c.n_group})"),
        (
            c.num_experts_per_tok <= c.topk_group * (c.n_routed_experts // c.n_group),
            f"num_experts_per_tok is {c.num_experts_per_tok}",
            "at most the experts of topk_group groups",
        ),
        (c.expert_dtype in ("fp8", "bf16"), f"expert_dtype is {c.expert_dtype!r}", "'fp8' or 'bf16'"),
        (c.weight_dtype == c.expert_dtype, f"weight_dtype is {c.weight_dtype!r}", "that of the experts"),
    )
