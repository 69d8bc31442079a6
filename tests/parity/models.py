"""Random small models of transformers, and the same weights as one of ours."""

import random
from dataclasses import replace
from typing import Any

import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from benthic.models.checkpoint import dummy_model, empty_model
from benthic.models.checkpoint.names import official_name
from benthic.models.config import ModelConfig
from benthic.models.packed import PackedContext
from benthic.models.rows import build_rows
from benthic.models.transformer import Transformer


def random_sizes(seed: int) -> dict[str, Any]:
    """A config.json of a small model; at least 16 index heads, since fewer tie at zero (model.md 2.6)."""
    pick = random.Random(seed)
    ratios = [pick.choice([0, 4, 128]) for _ in range(pick.randint(2, 5))]
    if pick.random() < 0.7:
        ratios[pick.randrange(len(ratios))] = 4
    head_dim, rope_dim, groups = pick.choice([16, 32, 64]), pick.choice([8, 16]), pick.choice([1, 2, 4])
    heads = groups * pick.choice([1, 2, 4])
    experts = pick.choice([4, 8, 16])
    has_yarn = pick.random() < 0.6
    sizes = {
        "model_type": "deepseek_v4",
        "vocab_size": pick.choice([97, 160, 256]),
        "hidden_size": pick.choice([32, 48, 64, 96]),
        "num_hidden_layers": len(ratios),
        "compress_ratios": [*ratios, 0],
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "head_dim": head_dim,
        "qk_rope_head_dim": rope_dim,
        "q_lora_rank": pick.choice([16, 24, 48]),
        "o_groups": groups,
        "o_lora_rank": pick.choice([8, 16, 24]),
        "sliding_window": pick.choice([4, 16, 64, 100, 128]),
        "index_n_heads": pick.choice([16, 24, 32]),
        "index_head_dim": pick.choice([16, 32]),
        "index_topk": pick.choice([5, 16, 64]),
        "rope_theta": 10000.0,
        "compress_rope_theta": pick.choice([40000.0, 160000.0]),
        "max_position_embeddings": 8192,
        "moe_intermediate_size": pick.choice([16, 32, 40]),
        "n_routed_experts": experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": pick.randint(1, min(4, experts)),
        "routed_scaling_factor": pick.choice([1.0, 1.5, 2.5]),
        "num_hash_layers": min(pick.randint(0, 2), len(ratios)),
        "swiglu_limit": pick.choice([0.05, 0.5, 10.0]),
        "hc_sinkhorn_iters": pick.choice([5, 20]),
        "hc_mult": pick.choice([4, 4, 2]),
    }
    if has_yarn:
        sizes["rope_scaling"] = {
            "type": "yarn",
            "factor": pick.choice([4, 16]),
            "original_max_position_embeddings": pick.choice([256, 65536]),
            "beta_fast": 32,
            "beta_slow": 1,
        }
    return sizes


@torch.no_grad()
def random_transformers_model(sizes: dict[str, Any], seed: int) -> DeepseekV4ForCausalLM:
    """A float32 model in which no tensor is trivial; logits of scale 5."""
    model = DeepseekV4ForCausalLM._from_config(
        DeepseekV4Config(**sizes), attn_implementation="eager", experts_implementation="eager"
    )
    model = model.float().eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name or name.endswith("scale"):
            parameter.copy_(1 + 0.3 * noise)
        elif name.endswith(("base", "sinks", "position_bias")):
            parameter.copy_(0.5 * noise)
        else:
            parameter.copy_(noise * parameter.shape[-1] ** -0.5)
    for name, buffer in model.named_buffers():
        if name.endswith("tid2eid"):  # transformers leaves zeros: one expert K times
            order = torch.rand(buffer.shape[0], sizes["n_routed_experts"], generator=generator).argsort(-1)
            buffer.copy_(order[:, : buffer.shape[1]])
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
    return model


@torch.no_grad()
def ours_with_weights_of(model: DeepseekV4ForCausalLM, sizes: dict[str, Any]) -> Transformer:
    """The same weights in our model, which then has no MTP block."""
    config = replace(ModelConfig.from_json(sizes), num_nextn_predict_layers=0)
    ours, weights = empty_model(config, device="cpu"), model.state_dict()
    theirs = {official_name(name): weights[name] for name in weights}
    state = ours.state_dict()
    assert state.keys() == theirs.keys()
    for name, tensor in state.items():
        tensor.copy_(theirs[name])
    return ours


@torch.no_grad()
def random_ours(config: ModelConfig, seed: int) -> Transformer:
    """One of ours, MTP block included, with weights whose logits have scale 5."""
    ours = dummy_model(config, seed, device="cpu")
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in ours.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith(("norm.weight", "scale")):
            tensor.copy_(1 + 0.3 * noise)
        elif name.endswith(("base", "attn_sink", "ape", "bias")):
            tensor.copy_(0.3 * noise)
        elif tensor.is_floating_point():
            tensor.copy_(noise * tensor.shape[-1] ** -0.5)
    return ours


def random_ids(vocab_size: int, length: int, seed: int) -> list[int]:
    """Token ids."""
    pick = random.Random(seed)
    return [pick.randrange(vocab_size) for _ in range(length)]


@torch.no_grad()
def packed_logits(model: Transformer, ids: list[int]) -> torch.Tensor:
    """float32 [len(ids), vocab]: the whole sequence in one pass."""
    rows = build_rows([(0, 0, ids)], model.min_rows)
    return model.logits(model.hidden(model(rows, PackedContext(model.config, rows))))[: len(ids)]


@torch.no_grad()
def transformers_logits(model: DeepseekV4ForCausalLM, ids: list[int]) -> torch.Tensor:
    """float32 [len(ids), vocab], without a cache."""
    return model(torch.tensor([ids]), use_cache=False).logits[0].float()
