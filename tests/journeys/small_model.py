"""A small random model over the bundled tokenizer, with every kind of layer, sharp enough that a wrong bit shows."""

import dataclasses
from importlib import resources
from pathlib import Path

import torch

from benthic.engine.cpu import prepare_products
from benthic.models.checkpoint import dummy_model
from benthic.models.config import ModelConfig
from benthic.models.transformer import Transformer

ASSETS = Path(str(resources.files("benthic"))) / "assets" / "tiny"


def build_model(seed: int = 1) -> Transformer:
    prepare_products(1)
    config = dataclasses.replace(
        ModelConfig.from_json(ASSETS),
        num_hidden_layers=3,
        compress_ratios=(0, 4, 128, 0),
        hidden_size=128,
        max_position_embeddings=1024,
        num_hash_layers=1,
    )
    model = dummy_model(config, seed=seed, device="cpu")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim >= 2 and "hc_" not in name:
                weight.mul_(5.0)
    return model
