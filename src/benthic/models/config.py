"""What a model is: one frozen record for every architecture, per-layer variety as data.

`ModelConfig.from_json` reads a released `config.json`; `to_json` writes one that reads back equal.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from benthic.errors import ConfigError
from benthic.models.config_dialects import read_fields

Routing = Literal["hash", "bias"]
WeightFormat = Literal["official", "fp8", "bf16", "fp32"]


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN context extension; `factor` divides the low frequencies (model.md 2.3)."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What distinguishes one layer from the next.

    `ratio` is the compression: 0 window only, 4 CSA with indexer, 128 HCA. `routing` chooses experts by token id
    ("hash") or by score plus correction bias ("bias").
    """

    ratio: int
    routing: Routing


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and constants of a DeepSeek-V4 model, named as in the released config.json.

    `compress_ratios` holds one entry a main layer; entries after `num_hidden_layers` belong to MTP blocks and are 0.
    Raises ConfigError for values that describe no model.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    compress_ratios: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: Yarn | None
    max_position_embeddings: int
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    num_hash_layers: int
    swiglu_limit: float
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    num_nextn_predict_layers: int = 1
    rms_norm_eps: float = 1e-6
    initializer_range: float = 0.02
    expert_dtype: Literal["fp4", "fp8"] = "fp4"
    bos_token_id: int = 0
    eos_token_id: int = 1

    def __post_init__(self) -> None:
        _check_types(self)
        _check_values(self)

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        """The main layers, in order."""
        return tuple(
            LayerSpec(ratio, "hash" if index < self.num_hash_layers else "bias")
            for index, ratio in enumerate(self.compress_ratios[: self.num_hidden_layers])
        )

    @property
    def mtp_layers(self) -> tuple[LayerSpec, ...]:
        """The multi-token-prediction blocks: window attention and bias routing."""
        return tuple(LayerSpec(0, "bias") for _ in range(self.num_nextn_predict_layers))

    @classmethod
    def from_json(cls, source: str | Path | Mapping[str, Any]) -> "ModelConfig":
        """Reads a config.json (a path to it, its folder, or its parsed object) of either dialect.

        Raises ConfigError when the file is absent, is no JSON object, or describes no DeepSeek-V4 that can be built.
        """
        raw = source if isinstance(source, Mapping) else _read_object(Path(source))
        names = {field.name for field in fields(cls)}
        required = {field.name for field in fields(cls) if field.default is MISSING}
        values = read_fields(raw, names, required)
        if values["rope_scaling"] is not None:
            values["rope_scaling"] = Yarn(**values["rope_scaling"])
        return cls(**values)

    def to_json(self, *, weights: WeightFormat = "official") -> dict[str, Any]:
        """The released config.json of this model whose files hold `weights`; transformers 5.24 reads it as well."""
        out: dict[str, Any] = {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4"}
        for field in fields(self):
            out[field.name] = getattr(self, field.name)
        out["compress_ratios"] = list(self.compress_ratios)
        if self.rope_scaling is None:
            del out["rope_scaling"]
        else:
            yarn = self.rope_scaling
            out["rope_scaling"] = {"type": "yarn", **{f.name: getattr(yarn, f.name) for f in fields(yarn)}}
        out |= {
            "num_key_value_heads": 1,
            "scoring_func": "sqrtsoftplus",
            "topk_method": "noaux_tc",
            "norm_topk_prob": True,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": False,
            "torch_dtype": "float32" if weights == "fp32" else "bfloat16",
            "use_cache": True,
        }
        if weights in ("official", "fp8"):
            out["quantization_config"] = {
                "activation_scheme": "dynamic",
                "fmt": "e4m3",
                "quant_method": "fp8",
                "scale_fmt": "ue8m0",
                "weight_block_size": [128, 128],
            }
        return out


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


def _check_types(config: ModelConfig) -> None:
    for field in fields(config):
        value = getattr(config, field.name)
        if field.type in ("int", int) and (isinstance(value, bool) or not isinstance(value, int)):
            raise ConfigError(f"{field.name} is {value!r}; a whole number is needed")
        if field.type in ("float", float) and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(f"{field.name} is {value!r}; a number is needed")


_MAY_BE_ZERO = frozenset({"num_hash_layers", "num_nextn_predict_layers", "bos_token_id", "eos_token_id"})


def _check_values(config: ModelConfig) -> None:
    c = config
    for field in fields(c):
        value = getattr(c, field.name)
        if isinstance(value, int | float) and value < (0 if field.name in _MAY_BE_ZERO else 1e-30):
            least = "at least 0" if field.name in _MAY_BE_ZERO else "above 0"
            raise ConfigError(f"{field.name} is {value}; it must be {least}")
    ratios, beyond = c.compress_ratios[: c.num_hidden_layers], c.compress_ratios[c.num_hidden_layers :]
    laws = (
        (len(ratios) == c.num_hidden_layers, f"compress_ratios has {len(ratios)} entries", "one for each main layer"),
        (set(ratios) <= {0, 4, 128}, f"compress_ratios is {list(ratios)}", "0, 4 or 128 for each layer"),
        (not any(beyond), f"compress_ratios ends in {list(beyond)}", "0 for each MTP block"),
        (c.num_hash_layers <= c.num_hidden_layers, f"num_hash_layers is {c.num_hash_layers}", "<= num_hidden_layers"),
        (c.num_attention_heads % c.o_groups == 0, f"o_groups is {c.o_groups}", "a divisor of num_attention_heads"),
        (c.qk_rope_head_dim % 2 == 0, f"qk_rope_head_dim is {c.qk_rope_head_dim}", "even"),
        (c.qk_rope_head_dim <= c.head_dim, f"qk_rope_head_dim is {c.qk_rope_head_dim}", f"<= head_dim ({c.head_dim})"),
        (c.qk_rope_head_dim <= c.index_head_dim, f"index_head_dim is {c.index_head_dim}", ">= qk_rope_head_dim"),
        (
            c.num_experts_per_tok <= c.n_routed_experts,
            f"num_experts_per_tok is {c.num_experts_per_tok}",
            f"<= n_routed_experts ({c.n_routed_experts})",
        ),
        (c.n_shared_experts == 1, f"n_shared_experts is {c.n_shared_experts}", "1, as in every DeepSeek-V4"),
        (c.expert_dtype in ("fp4", "fp8"), f"expert_dtype is {c.expert_dtype!r}", "'fp4' or 'fp8'"),
        (c.bos_token_id < c.vocab_size, f"bos_token_id is {c.bos_token_id}", f"below vocab_size ({c.vocab_size})"),
        (c.eos_token_id < c.vocab_size, f"eos_token_id is {c.eos_token_id}", f"below vocab_size ({c.vocab_size})"),
    )
    for holds, found, wanted in laws:
        if not holds:
            raise ConfigError(f"{found}; it must be {wanted}")
