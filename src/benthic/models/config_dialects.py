"""The spellings of a DeepSeek-V4's config.json, brought to one: plain data in, the fields of `ModelConfig` out.

Two dialects exist. DeepSeek's released files say `compress_ratios`, `num_hash_layers`, `qk_rope_head_dim` and
`rope_scaling`; transformers 5 rewrites these as `layer_types` with `compress_rates`, `mlp_layer_types`,
`partial_rotary_factor` and nested `rope_parameters`. Both give the same fields here (model.md section 1).
"""

import difflib
import logging
from collections.abc import Collection, Mapping
from typing import Any

from benthic.errors import ConfigError

LAYER_TYPE_RATIOS = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}

# One value is built; a file that says anything else describes another function.
FIXED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "num_key_value_heads": 1,
}

# Read by other parts of other systems, or dead defaults of a config class; they do not change the function.
WITHOUT_EFFECT = frozenset(
    {
        "_name_or_path", "architectures", "attention_dropout", "attn_implementation", "auto_map",
        "chunk_size_feed_forward", "dtype", "id2label", "intermediate_size", "is_encoder_decoder", "label2id",
        "model_type", "n_group", "name_or_path", "num_local_experts", "output_attentions", "output_hidden_states",
        "output_router_logits", "pad_token_id", "problem_type", "quantization_config", "return_dict",
        "router_aux_loss_coef", "router_jitter_noise", "topk_group", "torch_dtype", "transformers_version",
        "use_cache",
    }
)  # fmt: skip

# Keys that the functions below turn into fields.
TRANSLATED = frozenset(
    {
        "compress_rates", "compress_ratios", "compress_rope_theta", "eos_token_id", "expert_dtype", "layer_types",
        "mlp_layer_types", "num_hash_layers", "original_max_position_embeddings", "partial_rotary_factor",
        "qk_rope_head_dim", "rope_parameters", "rope_scaling", "rope_theta",
    }
)  # fmt: skip

MOST_MTP_BLOCKS = 64
"""More are no model, and a list of them might not fit into memory."""

_ABSENT = object()


def read_hybrid(raw: Mapping[str, Any], plain_fields: Collection[str], required: Collection[str]) -> dict[str, Any]:
    """Returns constructor fields for the `ModelConfig` of a DeepSeek-V4; `rope_scaling` is a dict or None.

    `plain_fields` are copied under their own name; `required` must be there in one spelling or the other. A key that
    nothing reads is logged as a warning with the nearest known name. Raises ConfigError.
    """
    _refuse_other_heads(raw)
    fields: dict[str, Any] = {name: raw[name] for name in plain_fields if name in raw and name not in TRANSLATED}
    fields["compress_ratios"] = _compress_ratios(raw)
    fields["num_hash_layers"] = _num_hash_layers(raw)
    fields.update(_rope(raw))
    fields["expert_dtype"] = _expert_dtype(raw)
    fields |= first_eos_token(raw)
    refuse_missing(fields, required, "DeepSeek-V4")
    warn_about_unknown(raw, {*plain_fields, *FIXED, *WITHOUT_EFFECT, *TRANSLATED})
    return fields


def _refuse_other_heads(raw: Mapping[str, Any]) -> None:
    dspark = sorted(name for name in raw if name.startswith("dspark_"))
    if dspark:
        raise ConfigError(
            f"config.json has {', '.join(dspark)}: a refreshed release with a DSpark draft head, which is not "
            "supported yet; the April releases (DeepSeek-V4-Flash, DeepSeek-V4-Pro) with an MTP block are"
        )
    refuse_other_values(raw, FIXED, "DeepSeek-V4")


def _compress_ratios(raw: Mapping[str, Any]) -> tuple[int, ...]:
    """One ratio a main layer, then one 0 an MTP block, whatever the file's list holds beyond the main layers."""
    num_layers = raw.get("num_hidden_layers")
    if not isinstance(num_layers, int):
        raise ConfigError(f"num_hidden_layers is {num_layers!r}; a whole number of layers is needed")
    ratios, types = raw.get("compress_ratios"), raw.get("layer_types")
    if ratios is None and types is None:
        raise ConfigError(
            "config.json has neither compress_ratios nor layer_types; there is no default, since the one of "
            "transformers matches no released model: state one ratio of 0, 4 or 128 for each layer"
        )
    from_types = None if types is None else _ratios_of_types(types, raw.get("compress_rates"))
    chosen = tuple(ratios) if ratios is not None else from_types
    assert chosen is not None
    if len(chosen) < num_layers:
        raise ConfigError(f"compress_ratios has {len(chosen)} entries; num_hidden_layers is {num_layers}")
    if from_types is not None and from_types[:num_layers] != chosen[:num_layers]:
        raise ConfigError(f"layer_types says ratios {from_types} but compress_ratios says {chosen}; they must agree")
    if any(chosen[num_layers:]):
        raise ConfigError(
            f"compress_ratios ends in {list(chosen[num_layers:])} after the {num_layers} main layers; entries beyond "
            "them belong to MTP blocks, which have ratio 0"
        )
    num_blocks = raw.get("num_nextn_predict_layers", 1)
    if not isinstance(num_blocks, int) or not 0 <= num_blocks <= MOST_MTP_BLOCKS:
        raise ConfigError(
            f"num_nextn_predict_layers is {num_blocks!r}; a whole number of 0 to {MOST_MTP_BLOCKS} MTP blocks is needed"
        )
    return chosen[:num_layers] + (0,) * num_blocks


def _ratios_of_types(types: list[str], rates: Mapping[str, int] | None) -> tuple[int, ...]:
    table = {**LAYER_TYPE_RATIOS, **(rates or {})}
    unknown = sorted(set(types) - set(table))
    if unknown:
        raise ConfigError(f"layer_types has {', '.join(unknown)}; allowed are {', '.join(LAYER_TYPE_RATIOS)}")
    return tuple(table[name] for name in types)


def _num_hash_layers(raw: Mapping[str, Any]) -> int:
    types = raw.get("mlp_layer_types")
    stated = raw.get("num_hash_layers")
    if types is None:
        if stated is None:
            raise ConfigError("config.json has neither num_hash_layers nor mlp_layer_types; state num_hash_layers")
        return int(stated)
    count = list(types).count("hash_moe")
    if list(types) != ["hash_moe"] * count + ["moe"] * (len(types) - count):
        raise ConfigError(f"mlp_layer_types is {types}; it must be hash_moe layers first, then moe layers")
    if stated is not None and min(int(stated), len(types)) != count:
        raise ConfigError(f"num_hash_layers is {stated} but mlp_layer_types has {count} hash_moe layers")
    return count


def _rope(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary fields: dims, the two bases, and YaRN of the compressed layers."""
    parameters = read_object(raw, "rope_parameters")
    nested = isinstance(parameters.get("main"), Mapping) and isinstance(parameters.get("compress"), Mapping)
    main = parameters["main"] if nested else {}
    compress = parameters["compress"] if nested else parameters
    fields: dict[str, Any] = {"rope_scaling": _yarn(raw, read_object(raw, "rope_scaling") or compress)}
    for name, value in (
        ("rope_theta", raw.get("rope_theta", main.get("rope_theta", _ABSENT))),
        ("compress_rope_theta", raw.get("compress_rope_theta", compress.get("rope_theta", _ABSENT))),
        ("qk_rope_head_dim", _rope_dim(raw, main)),
    ):
        if value is not _ABSENT:
            fields[name] = value
    return fields


def _rope_dim(raw: Mapping[str, Any], main: Mapping[str, Any]) -> Any:
    if "qk_rope_head_dim" in raw:
        return raw["qk_rope_head_dim"]
    factor = raw.get("partial_rotary_factor") or main.get("partial_rotary_factor")
    head_dim = raw.get("head_dim")
    # Rounded, since a factor written as a decimal fraction may come back a hair below the whole number.
    return round(head_dim * factor) if factor and isinstance(head_dim, int) else _ABSENT


def _yarn(raw: Mapping[str, Any], scaling: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in ("default", None):
        return None
    if kind != "yarn":
        raise ConfigError(f"rope_scaling has type {kind!r}; DeepSeek-V4 has 'yarn' or none")
    for name in ("attention_factor", "mscale", "mscale_all_dim"):
        if scaling.get(name, 1.0) not in (None, 1.0, 0):
            raise ConfigError(f"rope_scaling has {name} {scaling[name]}; DeepSeek-V4 leaves cos and sin unscaled (1.0)")
    original = scaling.get("original_max_position_embeddings", raw.get("original_max_position_embeddings"))
    if original is None or "factor" not in scaling:
        raise ConfigError(f"rope_scaling is {dict(scaling)}; yarn needs factor and original_max_position_embeddings")
    return {
        "factor": scaling["factor"],
        "original_max_position_embeddings": original,
        "beta_fast": scaling.get("beta_fast", 32.0),
        "beta_slow": scaling.get("beta_slow", 1.0),
    }


def _expert_dtype(raw: Mapping[str, Any]) -> str:
    """fp4 where stated or where nothing is quantised; a quantised file that does not say is an FP8 base model."""
    quantization = read_object(raw, "quantization_config")
    default = "fp8" if quantization else "fp4"
    return str(raw.get("expert_dtype") or quantization.get("expert_dtype") or default)


def read_object(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object under a key, empty where there is none. Raises ConfigError for another kind of value."""
    value = raw.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} is {value!r}; it must be an object, or null")
    return value


def first_eos_token(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`eos_token_id`, of several the first; nothing if it is absent."""
    if "eos_token_id" not in raw:
        return {}
    value = raw["eos_token_id"]
    return {"eos_token_id": value[0] if isinstance(value, list) and value else value}


def refuse_other_values(raw: Mapping[str, Any], fixed: Mapping[str, Any], family: str) -> None:
    """Raises ConfigError where a file says something else than the one value that is built."""
    for name, allowed in fixed.items():
        value = raw.get(name, allowed)
        if value != allowed:
            raise ConfigError(f"{name} is {value!r}; {family} has {allowed!r} and nothing else is built")


def refuse_missing(found: Mapping[str, Any], required: Collection[str], family: str) -> None:
    """Raises ConfigError for fields that no spelling gave."""
    missing = sorted(name for name in required if found.get(name, _ABSENT) is _ABSENT)
    if missing:
        raise ConfigError(f"config.json lacks {', '.join(missing)}; a {family} configuration states each of them")


def warn_about_unknown(raw: Mapping[str, Any], known: Collection[str]) -> None:
    """Logs each key that nothing reads, with the nearest known name."""
    for name in sorted(set(raw) - set(known)):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        logging.getLogger(__name__).warning("config.json key %r is not read%s", name, hint)
