"""What a model is: one frozen record for every architecture, per-layer variety as data.

`ModelConfig.from_json` reads a released `config.json`; `to_json` writes one that reads back equal.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benthic.errors import ConfigError

Routing = Literal["hash", "bias"]


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
    """Sizes and constants of a DeepSeek-V4 model, named as in the released config.json."""

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
