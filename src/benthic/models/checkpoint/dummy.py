"""Random weights of any configuration, the same on every machine for the same seed.

The initial values are those that trained without a spike: matrices N(0, 0.02), norms 1, sinks and position terms 0;
hyper-connections start as nearly separate streams (scale 0.1, the four input weights sum to 1, comb 3 on the diagonal).
Each tensor draws from a generator of its own, seeded by its name, so neither order nor layout matters.
"""

import hashlib
import math

import torch
from torch import Tensor

from benthic.kernels.linear import Fp8Weight
from benthic.models.checkpoint.build import empty_model
from benthic.models.config import ModelConfig
from benthic.models.experts import NativeExperts
from benthic.models.numerics import Policy, Weights
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
    weights: Weights = "wide",
    weight_dtype: torch.dtype | None = None,
    min_rows: int | None = None,
) -> Transformer:
    """A model with random weights, ready to train or to measure with; arguments as `empty_model`."""
    model = empty_model(
        config,
        device=device,
        dtype=dtype,
        numerics=numerics,
        weights=weights,
        weight_dtype=weight_dtype,
        min_rows=min_rows,
    )
    initialize(model, seed)
    return model


@torch.no_grad()
def initialize(model: Transformer, seed: int) -> None:
    """Sets every parameter and buffer of a model to its initial value.

    Native models draw on their own device, and of their experts the codes themselves: no stack is ever wide.
    """
    on = model.device if model.numerics.is_native else torch.device("cpu")
    for name, tensor in model.state_dict().items():
        if tensor.dtype == torch.float8_e4m3fn:
            weight = Fp8Weight.of(_initial_value(name, tensor.shape, model.config, _generator(seed, name, on)))
            tensor.copy_(weight.data)
            model.get_buffer(name.removesuffix("weight") + "scale").copy_(weight.scale)
        elif not (model.numerics.is_native and name.endswith(".scale")):
            tensor.copy_(_initial_value(name, tensor.shape, model.config, _generator(seed, name, on)))
    for name, module in model.named_modules():
        if isinstance(module, NativeExperts):
            _draw_experts(module, model.config, _generator(seed, name, on))


def _generator(seed: int, name: str, device: torch.device) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "little", signed=True))


def _draw_experts(experts: NativeExperts, config: ModelConfig, generator: torch.Generator) -> None:
    """Codes of any value under scales around that which gives them the usual deviation."""
    number, hidden, width = experts.num_experts, config.hidden_size, config.moe_intermediate_size
    for stack, outputs, inputs in (("w13", 2 * width, hidden), ("w2", hidden, width)):
        if experts.form == "fp4":
            # Codes of equal chance deviate by 2.9.
            power = round(math.log2(config.initializer_range / 2.9)) + 127
            codes = _bytes(0, 256, (number, outputs, inputs // 2), generator)
            scale = _bytes(power - 1, power + 2, (number, outputs, inputs // 32), generator)
        else:
            codes = torch.empty(number, outputs, inputs, dtype=torch.float8_e4m3fn, device=generator.device)
            for matrix in codes:
                matrix.copy_(torch.randn(matrix.shape, generator=generator, device=generator.device))
            tiles = (number, -(-outputs // 128), -(-inputs // 128))
            scale = torch.full(tiles, config.initializer_range, device=generator.device)
        experts.hold("w13" if stack == "w13" else "w2", codes, scale)


def _bytes(low: int, high: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(low, high, shape, dtype=torch.uint8, generator=generator, device=generator.device)


def _initial_value(name: str, shape: torch.Size, config: ModelConfig, generator: torch.Generator) -> Tensor:
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "tid2eid":
        # Each token id has its own random set of experts, none twice.
        order = torch.rand(shape[0], config.n_routed_experts, generator=generator, device=generator.device).argsort(-1)
        return order[:, : shape[1]]
    if leaf.startswith("hc_") and leaf.endswith("base"):
        return _hyper_base(leaf, config.hc_mult)
    if leaf.startswith("hc_") and leaf.endswith("scale"):
        return torch.full(shape, HYPER_SCALE)
    if leaf in ("attn_sink", "ape", "bias"):
        return torch.zeros(shape)
    if len(shape) == 1:
        return torch.ones(shape)
    return torch.randn(shape, generator=generator, device=generator.device) * config.initializer_range


def _hyper_base(leaf: str, streams: int) -> Tensor:
    """Biases pre | post | comb: sigmoid(pre) = 1 / n, 2 * sigmoid(post) = 1, comb drawn to the diagonal."""
    pre = torch.full((streams,), -math.log(streams - 1) if streams > 1 else 10.0)
    if leaf == "hc_head_base":
        return pre
    return torch.cat([pre, torch.zeros(streams), COMB_DIAGONAL * torch.eye(streams).flatten()])
