"""A small model with every kind of layer, and documents for it."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from benthic.models.checkpoint import dummy_model
from benthic.models.config import ModelConfig
from benthic.models.transformer import Transformer
from benthic.train.item import Item

VOCAB = 48


@pytest.fixture
def config() -> ModelConfig:
    """Window, CSA, HCA and MTP blocks, hash and bias routing."""
    return ModelConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        head_dim=32,
        qk_rope_head_dim=16,
        q_lora_rank=32,
        o_groups=2,
        o_lora_rank=16,
        sliding_window=16,
        compress_ratios=(0, 4, 128, 0),
        index_n_heads=4,
        index_head_dim=32,
        index_topk=4,
        rope_theta=10000.0,
        compress_rope_theta=160000.0,
        rope_scaling=None,
        max_position_embeddings=1024,
        moe_intermediate_size=32,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        routed_scaling_factor=1.5,
        num_hash_layers=1,
        swiglu_limit=10.0,
        hc_mult=2,
        hc_sinkhorn_iters=4,
    )


@pytest.fixture
def model(config: ModelConfig) -> Transformer:
    """The same weights in every test."""
    torch.set_num_threads(1)
    return dummy_model(config, seed=1, device="cpu", min_rows=2)


@pytest.fixture
def documents(seed: int) -> Callable[..., list[Item]]:
    """documents(lengths): random tokens with weights 0, 1 or 4."""
    rng = np.random.default_rng(seed)

    def make(lengths: list[int]) -> list[Item]:
        return [
            Item(rng.integers(0, VOCAB, n), np.append(rng.choice([0.0, 1.0, 4.0], n - 1), 1.0), f"tag{i % 2}")
            for i, n in enumerate(lengths)
        ]

    return make
