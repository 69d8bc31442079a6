"""Random weights of any configuration, the same on every machine for the same seed.

The initial values are those that trained without a spike: matrices N(0, 0.02), norms 1, sinks and position terms 0;
hyper-connections start as nearly separate streams (scale 0.1, the four input weights sum to 1, comb 3 on the diagonal).
Each tensor draws from a generator of its own, seeded by its name, so neither order nor layout matters.
"""

import hashlib
import math

import torch
from torch import Tensor

from benthic.models.checkpoint.build import empty_model
from benthic.models.config import ModelConfig
from benthic.models.numerics import Policy
from benthic.models.transformer import Transformer

HYPER_SCALE = 0.1
COMB_DIAGONAL = 3.0


def dummy_model(
    config: ModelConfig,
    seed: int = 0,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    numerics: Policy | None = None,
    weight_dtype: torch.dtype | None = None,
    min_rows: int | None = None,
) -> Transformer:
    """A model with random weights, ready to train or to measure with; arguments as `empty_model`."""
    model = empty_model(
        config, device=device, dtype=dtype, numerics=numerics, weight_dtype=weight_dtype, min_rows=min_rows
    )
    initialize(model, seed)
    return model


@torch.no_grad()
def initialize(model: Transformer, seed: int) -> None:
    """Sets every parameter and buffer of a model to its initial value."""
    for name, tensor in model.state_dict().items():
        digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
        tensor.copy_(_initial_value(name, tensor.shape, model.config, generator))


def _initial_value(name: str, shape: torch.Size, config: ModelConfig, generator: torch.Generator) -> Tensor:
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "tid2eid":
        # Each token id has its own random set of experts, none twice.
        order = torch.rand(shape[0], config.n_routed_experts, generator=generator).argsort(-1)
        return order[:, : shape[1]]
    if leaf.startswith("hc_") and leaf.endswith("base"):
        return _hyper_base(leaf, config.hc_mult)
    if leaf.startswith("hc_") and leaf.endswith("scale"):
        return torch.full(shape, HYPER_SCALE)
    if leaf in ("attn_sink", "ape", "bias"):
        return torch.zeros(shape)
    if len(shape) == 1:
        return torch.ones(shape)
    return torch.randn(shape, generator=generator) * config.initializer_range


def _hyper_base(leaf: str, streams: int) -> Tensor:
    """Biases pre | post | comb: sigmoid(pre) = 1 / n, 2 * sigmoid(post) = 1, comb drawn to the diagonal."""
    pre = torch.full((streams,), -math.log(streams - 1) if streams > 1 else 10.0)
    if leaf == "hc_head_base":
        return pre
    return torch.cat([pre, torch.zeros(streams), COMB_DIAGONAL * torch.eye(streams).flatten()])
