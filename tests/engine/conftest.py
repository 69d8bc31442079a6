"""A small random model with every kind of layer, sharp enough that a wrong bit changes tokens."""

import pytest
import torch

from benthic.engine.cpu import prepare_products
from benthic.models.checkpoint import dummy_model
from benthic.models.config import ModelConfig, Yarn
from benthic.models.transformer import Transformer

CONFIG = ModelConfig(
    vocab_size=512, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, head_dim=32, qk_rope_head_dim=8,
    q_lora_rank=32, o_groups=2, o_lora_rank=16, sliding_window=128, compress_ratios=(0, 4, 128, 4, 0), index_n_heads=4,
    index_head_dim=16, index_topk=16, rope_theta=1e4, compress_rope_theta=1.6e5, rope_scaling=Yarn(16.0, 4096),
    max_position_embeddings=2048, moe_intermediate_size=32, n_routed_experts=8, n_shared_experts=1,
    num_experts_per_tok=2, routed_scaling_factor=1.5, num_hash_layers=1, swiglu_limit=10.0,
)  # fmt: skip


@pytest.fixture(scope="session")
def small_model() -> Transformer:
    """Do not change its weights."""
    return build_model()


@pytest.fixture
def own_model() -> Transformer:
    """A copy whose weights a test may change."""
    return build_model()


def build_model(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Transformer:
    prepare_products(1)
    model = dummy_model(CONFIG, seed=3, device=device, dtype=dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim >= 2 and "hc_" not in name:
                weight.mul_(6.0)
    return model.freeze()
