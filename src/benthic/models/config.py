"""What a model is: one frozen record for every family, per-layer variety as data.

`ModelConfig.from_json` reads a released `config.json`; `to_json` writes one that reads back equal.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from benthic.errors import ConfigError
from benthic.models.config_laws import check_types, check_values, check_yarn
from benthic.models.families import FAMILIES, ModelType, family_of

Routing = Literal["hash", "bias", "score"]
WeightFormat = Literal["official", "fp8", "bf16", "fp32"]


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN context extension; `factor` divides the low frequencies (model.md 2.3).

    `mscale` and `mscale_all_dim` (V2, V3) scale the rotation and the softmax, see `ModelConfig.softmax_scale` and
    `rope_amplitude`; None leaves both alone, as V4 does.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None

    def __post_init__(self) -> None:
        check_yarn(self)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What distinguishes one layer from the next.

    `ratio` is the compression: 0 window only, 4 CSA, 128 HCA, 1 every token (latent attention, which has no window).
    `routing` chooses experts by token id ("hash"), by score plus correction bias ("bias") or by score. `has_index`: an
    indexer chooses which entries a row reads.
    """

    ratio: int
    routing: Routing
    attention: Literal["hybrid", "latent"] = "hybrid"
    mlp: Literal["experts", "dense"] = "experts"
    has_index: bool = False
    residual: Literal["mhc", "plain"] = "mhc"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and constants of a DeepSeek model, V2 to V4, named as in the released config.json.

    What a family has not keeps a neutral value: 0, one group, or a clamp at infinity; `q_lora_rank` 0 (null in files)
    means queries without a latent. Fields behind `swiglu_limit` have V4's values.
    `compress_ratios` (V4) holds one entry a main layer; entries after `num_hidden_layers` belong to MTP blocks and are
    0. `expert_dtype` and `weight_dtype` say how the released files hold experts and other matrices; `scale_dtype`
    which numbers the scales of FP8 blocks and activations take. Raises ConfigError for values that describe no model.
    """

    model_type: ModelType = "deepseek_v4"
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    qk_rope_head_dim: int
    q_lora_rank: int
    rope_theta: float
    rope_scaling: Yarn | None
    max_position_embeddings: int
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    # Latent attention and dense layers (V2, V3).
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    intermediate_size: int = 0
    first_k_dense_replace: int = 0
    moe_layer_freq: int = 1
    # The gate.
    scoring_func: Literal["sqrtsoftplus", "sigmoid", "softmax"] = "sqrtsoftplus"
    topk_method: Literal["greedy", "group_limited_greedy", "noaux_tc"] = "noaux_tc"
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    # The indexer (V3.2, V4).
    index_n_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0
    # Hybrid attention (V4).
    head_dim: int = 0
    o_groups: int = 0
    o_lora_rank: int = 0
    sliding_window: int = 0
    compress_ratios: tuple[int, ...] = ()
    compress_rope_theta: float = 0.0
    num_hash_layers: int = 0
    swiglu_limit: float = math.inf
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    num_nextn_predict_layers: int = 1
    rms_norm_eps: float = 1e-6
    initializer_range: float = 0.02
    expert_dtype: Literal["fp4", "fp8", "bf16"] = "fp4"
    weight_dtype: Literal["fp8", "bf16"] = "fp8"
    scale_dtype: Literal["ue8m0", "fp32"] = "ue8m0"
    bos_token_id: int = 0
    eos_token_id: int = 1

    def __post_init__(self) -> None:
        check_types(self)
        check_values(self)

    @property
    def is_latent(self) -> bool:
        """Whether attention is multi-head latent attention (V2, V3)."""
        return self.model_type != "deepseek_v4"

    @property
    def entry_dim(self) -> int:
        """Width of what a token leaves in a layer's cache, and of a query head that reads it."""
        return self.kv_lora_rank + self.qk_rope_head_dim if self.is_latent else self.head_dim

    @property
    def value_dim(self) -> int:
        """How many of an entry's first numbers are its value."""
        return self.kv_lora_rank if self.is_latent else self.head_dim

    @property
    def softmax_scale(self) -> float:
        """Factor of attention scores: d^-0.5, times the square of YaRN's mscale_all_dim term (family.md 3)."""
        if not self.is_latent:
            return float(self.head_dim**-0.5)
        scale = float((self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5)
        yarn = self.rope_scaling
        return scale * _yarn_mscale(yarn.factor, yarn.mscale_all_dim) ** 2 if yarn and yarn.mscale_all_dim else scale

    @property
    def rope_amplitude(self) -> float:
        """Factor of cos and sin (family.md 3): 1 in every released model.

        As in the official code, an absent mscale is 1 and an absent mscale_all_dim 0; transformers differs where only
        one of the two is given, and where both are 0 (family.md, "Where transformers differs").
        """
        yarn = self.rope_scaling
        if not self.is_latent or yarn is None:
            return 1.0
        mscale = 1.0 if yarn.mscale is None else yarn.mscale
        return _yarn_mscale(yarn.factor, mscale) / _yarn_mscale(yarn.factor, yarn.mscale_all_dim or 0.0)

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        """The main layers, in order."""
        return tuple(self._layer(index) for index in range(self.num_hidden_layers))

    @property
    def mtp_layers(self) -> tuple[LayerSpec, ...]:
        """The multi-token-prediction blocks: window attention in V4, a layer like the others in V3; never dense."""
        block = self._latent_layer("experts") if self.is_latent else LayerSpec(0, "bias")
        return (block,) * self.num_nextn_predict_layers

    def _layer(self, index: int) -> LayerSpec:
        if self.is_latent:
            is_dense = index < self.first_k_dense_replace or index % self.moe_layer_freq != 0
            return self._latent_layer("dense" if is_dense else "experts")
        ratio = self.compress_ratios[index]
        return LayerSpec(ratio, "hash" if index < self.num_hash_layers else "bias", has_index=ratio == 4)

    def _latent_layer(self, mlp: Literal["experts", "dense"]) -> LayerSpec:
        routing: Routing = "bias" if self.topk_method == "noaux_tc" else "score"
        return LayerSpec(1, routing, "latent", mlp, self.index_topk > 0, "plain")

    @classmethod
    def from_json(cls, source: str | Path | Mapping[str, Any]) -> "ModelConfig":
        """Reads a config.json (a path to it, its folder, or its parsed object) of any family and dialect.

        Raises ConfigError when the file is absent, is no JSON object, or describes no model that can be built.
        """
        raw = source if isinstance(source, Mapping) else _read_object(Path(source))
        try:
            values = family_of(raw).read(raw)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # The readers name what they know; whatever else a file may hold is the file's fault as well.
            raise ConfigError(f"config.json holds a value of a kind that it cannot have ({error!r})") from None
        if values["rope_scaling"] is not None:
            values["rope_scaling"] = Yarn(**values["rope_scaling"])
        return cls(**values)

    def to_json(self, *, weights: WeightFormat = "official") -> dict[str, Any]:
        """The released config.json of this model whose files hold `weights`; transformers 5.24 reads it as well."""
        family = FAMILIES[self.model_type]
        out: dict[str, Any] = {"architectures": [family.architecture], "model_type": self.model_type}
        for name in family.written:
            out[name] = getattr(self, name)
        out["q_lora_rank"] = self.q_lora_rank or None
        if "compress_ratios" in out:
            out["compress_ratios"] = list(self.compress_ratios)
        if self.rope_scaling is None:
            del out["rope_scaling"]
        else:
            yarn = {f.name: getattr(self.rope_scaling, f.name) for f in fields(self.rope_scaling)}
            out["rope_scaling"] = {"type": "yarn", **{name: v for name, v in yarn.items() if v is not None}}
        out |= {
            **family.fixed,
            "num_key_value_heads": self.num_attention_heads if self.is_latent else 1,
            "attention_dropout": 0.0,
            "torch_dtype": "float32" if weights == "fp32" else "bfloat16",
            "use_cache": True,
        }
        if weights == "fp8" or (weights == "official" and self.weight_dtype == "fp8"):
            out["quantization_config"] = {
                "activation_scheme": "dynamic",
                "fmt": "e4m3",
                "quant_method": "fp8",
                "weight_block_size": [128, 128],
            }
            if self.scale_dtype == "ue8m0":
                out["quantization_config"]["scale_fmt"] = "ue8m0"
        return out


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _read_object(path: Path) -> Mapping[str, Any]:
    if path.is_dir():
        path = path / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}; a checkpoint folder holds a config.json beside its weights") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path} is not JSON ({error}); a config.json holds one object") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} holds a JSON {type(raw).__name__}; a config.json holds one object")
    return raw
