"""config.json of DeepSeek-V2, V3 and V3.2: plain data in, the fields of `ModelConfig` out (family.md section 1).

The released files say `rope_scaling` and `first_k_dense_replace`; transformers 5 writes `rope_parameters` and, for
V3.2, `mlp_layer_types` as well. Both give the same fields here.
"""

from collections.abc import Collection, Mapping
from typing import Any

from benthic.errors import ConfigError
from benthic.models.config_dialects import (
    first_eos_token,
    read_object,
    refuse_missing,
    refuse_other_values,
    warn_about_unknown,
)

FIXED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "rope_interleave": True,
}

WITHOUT_EFFECT = frozenset(
    {
        "_name_or_path", "architectures", "attention_dropout", "attn_implementation", "auto_map", "aux_loss_alpha",
        "chunk_size_feed_forward", "dtype", "ep_size", "head_dim", "id2label", "is_encoder_decoder", "label2id",
        "layer_types", "model_type", "name_or_path", "num_local_experts", "output_attentions", "output_hidden_states",
        "output_router_logits", "pad_token_id", "pretraining_tp", "problem_type", "qk_head_dim", "return_dict",
        "router_aux_loss_coef", "seq_aux", "torch_dtype", "transformers_version", "use_cache",
    }
)  # fmt: skip

TRANSLATED = frozenset(
    {
        "eos_token_id", "mlp_layer_types", "n_group", "num_experts", "num_key_value_heads", "num_mtp_layers",
        "num_nextn_predict_layers", "q_lora_rank", "quantization_config", "rope_parameters", "rope_scaling",
        "rope_theta", "scoring_func", "topk_group", "topk_method",
    }
)  # fmt: skip


def read_latent(
    raw: Mapping[str, Any],
    plain_fields: Collection[str],
    required: Collection[str],
    model_type: str,
    gate: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns constructor fields for `ModelConfig`; `rope_scaling` is a dict or None.

    `gate`: what the family's gate is, where the file does not say. Raises ConfigError.
    """
    refuse_other_values(raw, FIXED, model_type)
    fields: dict[str, Any] = {name: raw[name] for name in plain_fields if name in raw and name not in TRANSLATED}
    fields |= {"model_type": model_type, "hc_mult": 1, "q_lora_rank": raw.get("q_lora_rank") or 0}
    fields |= {name: default if raw.get(name) is None else raw[name] for name, default in gate.items()}
    # null stands for one group; an absent key would be a guess, since transformers takes V3's 8 and 4 for it.
    fields |= {name: 1 if raw[name] is None else raw[name] for name in ("n_group", "topk_group") if name in raw}
    fields["num_nextn_predict_layers"] = raw.get("num_nextn_predict_layers", raw.get("num_mtp_layers", 0)) or 0
    if "n_routed_experts" not in fields and "num_experts" in raw:
        fields["n_routed_experts"] = raw["num_experts"]
    fields |= _rope(raw) | _formats(raw) | _dense_layers(raw) | first_eos_token(raw)
    heads = raw.get("num_key_value_heads")
    if heads not in (None, raw.get("num_attention_heads")):
        raise ConfigError(
            f"num_key_value_heads is {heads}; latent attention has one a head: num_attention_heads "
            f"({raw.get('num_attention_heads')})"
        )
    refuse_missing(fields, required, model_type)
    warn_about_unknown(raw, {*plain_fields, *FIXED, *WITHOUT_EFFECT, *TRANSLATED})
    return fields


def _rope(raw: Mapping[str, Any]) -> dict[str, Any]:
    parameters = read_object(raw, "rope_parameters")
    found: dict[str, Any] = {"rope_scaling": _yarn(raw, read_object(raw, "rope_scaling") or parameters)}
    theta = raw.get("rope_theta", parameters.get("rope_theta"))
    return found if theta is None else {**found, "rope_theta": theta}


def _yarn(raw: Mapping[str, Any], scaling: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in ("default", None):
        return None
    if kind != "yarn":
        raise ConfigError(f"rope_scaling has type {kind!r}; the DeepSeek family has 'yarn' or none")
    original = scaling.get("original_max_position_embeddings", raw.get("original_max_position_embeddings"))
    if original is None or "factor" not in scaling:
        raise ConfigError(f"rope_scaling is {dict(scaling)}; yarn needs factor and original_max_position_embeddings")
    if scaling.get("attention_factor") is not None:
        raise ConfigError(
            f"rope_scaling has attention_factor {scaling['attention_factor']}; mscale and mscale_all_dim say it here"
        )
    yarn: dict[str, Any] = {"factor": scaling["factor"], "original_max_position_embeddings": original}
    names = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
    return yarn | {name: scaling[name] for name in names if scaling.get(name) is not None}


def _formats(raw: Mapping[str, Any]) -> dict[str, Any]:
    quantization = read_object(raw, "quantization_config")
    if not quantization:
        return {"weight_dtype": "bf16", "expert_dtype": "bf16"}
    method, block = quantization.get("quant_method"), quantization.get("weight_block_size", [128, 128])
    if method != "fp8" or block not in ([128, 128], (128, 128)):
        raise ConfigError(
            f"quantization_config has quant_method {method!r} and weight_block_size {block}; 'fp8' in blocks of "
            "[128, 128] can be read"
        )
    scale = "ue8m0" if quantization.get("scale_fmt") == "ue8m0" else "fp32"
    return {"weight_dtype": "fp8", "expert_dtype": "fp8", "scale_dtype": scale}


def _dense_layers(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`first_k_dense_replace`, also from the list that says "dense" or "sparse" for each layer."""
    types = raw.get("mlp_layer_types")
    if types is None:
        return {}
    if not isinstance(types, list) or len(types) != raw.get("num_hidden_layers"):
        raise ConfigError(
            f"mlp_layer_types is {types!r}; it must name a kind for each of num_hidden_layers "
            f"({raw.get('num_hidden_layers')}) layers"
        )
    count = types.count("dense")
    if types != ["dense"] * count + ["sparse"] * (len(types) - count):
        raise ConfigError(f"mlp_layer_types is {types}; it must be dense layers first, then sparse layers")
    # transformers writes the list beside a number of its own that counts beyond a short model's layers.
    stated = raw.get("first_k_dense_replace", count)
    if not isinstance(stated, int) or min(stated, len(types)) != count:
        raise ConfigError(f"first_k_dense_replace is {stated!r} but mlp_layer_types has {count} dense layers")
    return {"first_k_dense_replace": count}
