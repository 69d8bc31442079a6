"""Small configurations for checkpoint tests, and a pile of files made without the package under test."""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benthic.models.checkpoint import dummy_model
from benthic.models.config import ModelConfig, Yarn
from benthic.models.transformer import Transformer

SMALL = ModelConfig(
    vocab_size=67,
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    head_dim=32,
    qk_rope_head_dim=8,
    q_lora_rank=24,
    o_groups=2,
    o_lora_rank=16,
    sliding_window=16,
    compress_ratios=(0, 4, 128, 0),
    index_n_heads=4,
    index_head_dim=16,
    index_topk=4,
    rope_theta=10000,
    compress_rope_theta=160000,
    rope_scaling=Yarn(16.0, 65536),
    max_position_embeddings=8192,
    moe_intermediate_size=32,
    n_routed_experts=4,
    n_shared_experts=1,
    num_experts_per_tok=2,
    routed_scaling_factor=1.5,
    num_hash_layers=1,
    swiglu_limit=10.0,
)
# Experts wide enough to be stacked in FP8, blocks that end ragged.
WIDE = replace(SMALL, hidden_size=160, moe_intermediate_size=128, num_hidden_layers=2, compress_ratios=(4, 0, 0))


def random_model(config: ModelConfig = SMALL, seed: int = 0) -> Transformer:
    """A model in which no tensor is constant: a swapped or forgotten one shows."""
    model = dummy_model(config, seed, device="cpu", min_rows=2)
    generator = torch.Generator().manual_seed(seed + 1)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and (tensor == tensor.flatten()[0]).all() or name.endswith("base"):
            tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator))
    return model


def read_all(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a folder, by the safetensors library."""
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors


def write_all(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """One file with these tensors, by the safetensors library."""
    for path in folder.glob("model*"):
        path.unlink()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def same_state(one: Transformer, other: Transformer) -> bool:
    """Whether two models have the same tensors, bit for bit."""
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
