"""Random small models of transformers' DeepSeek-V2, V3 and V3.2, and the same weights as one of ours."""

import random
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DeepseekV32Config,
    DeepseekV32ForCausalLM,
    PreTrainedModel,
)

from benthic.models.checkpoint import empty_model
from benthic.models.config import ModelConfig
from benthic.models.transformer import Transformer

FAMILIES = ("deepseek_v2", "deepseek_v3", "deepseek_v32")
_THEIRS = {
    "deepseek_v2": (DeepseekV2Config, DeepseekV2ForCausalLM),
    "deepseek_v3": (DeepseekV3Config, DeepseekV3ForCausalLM),
    "deepseek_v32": (DeepseekV32Config, DeepseekV32ForCausalLM),
}
# By layers, or by the whole model: what comes behind the number of a layer in their names and in ours.
_NAMES = {
    "model.embed_tokens.weight": "embed.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "head.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn.wq.weight",
    "self_attn.q_a_proj.weight": "attn.wq_a.weight",
    "self_attn.q_a_layernorm.weight": "attn.q_norm.weight",
    "self_attn.q_b_proj.weight": "attn.wq_b.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn.wkv_a.weight",
    "self_attn.kv_a_layernorm.weight": "attn.kv_norm.weight",
    "self_attn.kv_b_proj.weight": "attn.wkv_b.weight",
    "self_attn.o_proj.weight": "attn.wo.weight",
    "self_attn.indexer.wq_b.weight": "attn.indexer.wq_b.weight",
    "self_attn.indexer.wk.weight": "attn.indexer.wk.weight",
    "self_attn.indexer.k_norm.weight": "attn.indexer.k_norm.weight",
    "self_attn.indexer.k_norm.bias": "attn.indexer.k_norm.bias",
    "self_attn.indexer.weights_proj.weight": "attn.indexer.weights_proj.weight",
    "mlp.gate_proj.weight": "ffn.w1.weight",
    "mlp.down_proj.weight": "ffn.w2.weight",
    "mlp.up_proj.weight": "ffn.w3.weight",
    "mlp.gate.weight": "ffn.gate.weight",
    "mlp.gate.e_score_correction_bias": "ffn.gate.bias",
    "mlp.experts.gate_up_proj": "ffn.experts.w13",
    "mlp.experts.down_proj": "ffn.experts.w2",
    "mlp.shared_experts.gate_proj.weight": "ffn.shared_experts.w1.weight",
    "mlp.shared_experts.down_proj.weight": "ffn.shared_experts.w2.weight",
    "mlp.shared_experts.up_proj.weight": "ffn.shared_experts.w3.weight",
}


def random_family_sizes(family: str, seed: int) -> dict[str, Any]:
    """A config.json of a small model; at least 16 index heads, since fewer tie at zero (model.md 2.6).

    What changes the shape of the computation goes round with the seed; sizes are drawn.
    """
    pick = random.Random(f"{family} {seed}")
    layers = pick.randint(2, 4)
    groups, group_size = (4, 1, 2, 4)[seed % 4], pick.choice([2, 4])
    experts = groups * group_size
    kept_groups = pick.randint(1, groups)
    has_yarn, has_query_latent = seed % 3 != 2, seed % 2 == 0 or family == "deepseek_v32"
    sizes: dict[str, Any] = {
        "model_type": family,
        "vocab_size": pick.choice([97, 160, 256]),
        "hidden_size": pick.choice([32, 64, 96]),
        "num_hidden_layers": layers,
        "first_k_dense_replace": seed % layers,
        "intermediate_size": pick.choice([48, 80]),
        "num_attention_heads": pick.choice([2, 4, 8]),
        "q_lora_rank": pick.choice([24, 48]) if has_query_latent else None,
        "kv_lora_rank": pick.choice([16, 32, 48]),
        "qk_nope_head_dim": pick.choice([8, 16, 24]),
        "qk_rope_head_dim": pick.choice([8, 16]),
        "v_head_dim": pick.choice([8, 16, 32]),
        "rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "moe_intermediate_size": pick.choice([16, 32, 40]),
        "n_routed_experts": experts,
        "n_shared_experts": 1 + seed // 2 % 2,
        "num_experts_per_tok": pick.randint(1, min(4, kept_groups * group_size)),
        "routed_scaling_factor": pick.choice([1.0, 2.5]),
        "n_group": groups,
        "topk_group": kept_groups,
    }
    sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    if family == "deepseek_v2":
        sizes |= {"topk_method": "greedy" if groups == 1 else "group_limited_greedy", "norm_topk_prob": False}
    else:
        sizes["norm_topk_prob"] = pick.random() < 0.7
    if family == "deepseek_v32":
        sizes |= {"index_n_heads": pick.choice([16, 24]), "index_head_dim": 32, "index_topk": pick.choice([9, 40, 128])}
    if has_yarn:
        sizes["rope_scaling"] = {
            "type": "yarn",
            "factor": pick.choice([4, 40]),
            "original_max_position_embeddings": pick.choice([256, 4096]),
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": pick.choice([0.707, 1.0]),
            "mscale_all_dim": pick.choice([0.707, 1.0, 0.4]),
        }
    return sizes


def empty_family_model(sizes: dict[str, Any]) -> PreTrainedModel:
    """transformers' model of these sizes in float32."""
    config_class, model_class = _THEIRS[sizes["model_type"]]
    model = model_class._from_config(config_class(**sizes), attn_implementation="eager", experts_implementation="eager")
    return model.float().eval()


@torch.no_grad()
def random_family_model(sizes: dict[str, Any], seed: int) -> PreTrainedModel:
    """The same with weights: no tensor is trivial, logits have scale 5."""
    model = empty_family_model(sizes)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.bias"):
            parameter.copy_(0.3 * noise)
        elif "norm" in name:
            parameter.copy_(1 + 0.3 * noise)
        else:
            parameter.copy_(noise * parameter.shape[-1] ** -0.5)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
    return model


def our_name(name: str) -> str:
    """Our name of one of their tensors."""
    if not name.startswith("model.layers."):
        return _NAMES[name]
    _, _, layer, part = name.split(".", 3)
    return f"layers.{layer}.{_NAMES[part]}"


@torch.no_grad()
def ours_of_family(model: PreTrainedModel, sizes: dict[str, Any]) -> Transformer:
    """The same weights in our model, which then has no MTP block."""
    config = replace(ModelConfig.from_json(sizes), num_nextn_predict_layers=0)
    ours = empty_model(config, device="cpu")
    theirs: dict[str, Tensor] = {our_name(name): tensor for name, tensor in model.state_dict().items()}
    state = ours.state_dict()
    assert state.keys() == theirs.keys()
    for name, tensor in state.items():
        tensor.copy_(theirs[name])
    return ours
