"""One random small model of each family before V4, sharp enough that a wrong bit changes tokens.

Entries are a token wide, so pages may be small; V3.2's indexer picks fewer entries than the contexts below hold.
"""

from collections.abc import Sequence
from functools import cache

import torch

from benthic.engine.config import EngineConfig
from benthic.engine.cpu import prepare_products
from benthic.models.checkpoint import dummy_model
from benthic.models.config import ModelConfig, Yarn
from benthic.models.transformer import Transformer
from tests.exactness.places import Place, current, options

PAGE = 16


def _config(model_type: str, **fields: object) -> ModelConfig:
    given: dict[str, object] = {
        "model_type": model_type, "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 3,
        "num_attention_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
        "v_head_dim": 16, "rope_theta": 1e4, "rope_scaling": Yarn(8.0, 64, mscale=1.0, mscale_all_dim=1.0),
        "max_position_embeddings": 1024, "intermediate_size": 96, "moe_intermediate_size": 32, "n_routed_experts": 8,
        "n_shared_experts": 2, "num_experts_per_tok": 2, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1,
        "hc_mult": 1,
    }  # fmt: skip
    return ModelConfig(**{**given, **fields})  # type: ignore[arg-type]


_SOFTMAX = {
    "scoring_func": "softmax", "norm_topk_prob": False, "num_nextn_predict_layers": 0, "expert_dtype": "bf16",
    "weight_dtype": "bf16", "scale_dtype": "fp32",
}  # fmt: skip
_SIGMOID = {
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "n_group": 4, "topk_group": 2, "n_shared_experts": 1,
    "expert_dtype": "fp8", "scale_dtype": "fp32",
}  # fmt: skip

CONFIGS = {
    "V2": _config("deepseek_v2", topk_method="group_limited_greedy", n_group=4, topk_group=2, **_SOFTMAX),
    "V2-Lite": _config("deepseek_v2", topk_method="greedy", q_lora_rank=0, **_SOFTMAX),
    "V3": _config("deepseek_v3", **_SIGMOID),
    "V3.2": _config(
        "deepseek_v32",
        **{**_SIGMOID, "index_n_heads": 4, "index_head_dim": 16, "index_topk": 6, "scale_dtype": "ue8m0"},
    ),
}
FAMILIES: Sequence[str] = tuple(CONFIGS)
WITH_DRAFTS = ("V3", "V3.2")


def family_model(name: str, seed: int = 3) -> Transformer:
    """The model of a family at the test's place; its weights must not be changed."""
    return _kept_model(name, seed, current())


@cache
def _kept_model(name: str, seed: int, place: Place) -> Transformer:
    return fresh_model(name, seed).freeze()


def fresh_model(name: str, seed: int = 3, config: ModelConfig | None = None) -> Transformer:
    """A model of a family, not frozen yet; `config` in place of the family's small one."""
    prepare_products(1)
    model = dummy_model(config or CONFIGS[name], seed=seed, **options())
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim >= 2:
                weight.mul_(6.0)
    return model


def family_engine(**changes: object) -> EngineConfig:
    """Budgets for these models, with every law checked after every step."""
    given: dict[str, object] = {"page_size": PAGE, "cache_bytes": 1 << 24, "debug_checks": True, "max_num_seqs": 4}
    return EngineConfig(**{**given, "retention_interval": PAGE * 64, **changes})  # type: ignore[arg-type]
