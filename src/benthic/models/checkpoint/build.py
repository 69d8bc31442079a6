"""A model with room for its weights and nothing in it yet."""

import torch
from torch import nn

from benthic.errors import ConfigError
from benthic.kernels.compiling import compile_cuda_sources
from benthic.kernels.exactness import establish_min_rows
from benthic.models.checkpoint.names import expert_slice
from benthic.models.checkpoint.placement import chosen_device
from benthic.models.checkpoint.source import piece_of
from benthic.models.checkpoint.table import BLOCK, pieces
from benthic.models.config import ModelConfig
from benthic.models.numerics import Policy, Weights
from benthic.models.transformer import Transformer


def empty_model(
    config: ModelConfig,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    numerics: Policy | None = None,
    weights: Weights = "wide",
    weight_dtype: torch.dtype | None = None,
    min_rows: int | None = None,
) -> Transformer:
    """A Transformer whose parameters and buffers are allocated and not set.

    Args:
        config: sizes.
        device: None takes CUDA where there is one.
        dtype: of activations; None takes float32 on CPU, bfloat16 on CUDA.
        numerics: None is "plain".
        weights: "wide", or "native": see `load_model`.
        weight_dtype: of matrices; None takes float32 on CPU (holding the values of any file exactly) and `dtype` on
            CUDA. Vectors and mHC parameters are float32 always.
        min_rows: rows of a product that make it exact; None finds out on CPU, where it depends on the machine.

    Raises:
        ConfigError: the device or the numerics do not exist, or do not go with native weights.
    """
    place = chosen_device(device)
    compile_cuda_sources(place)
    if weights == "native":
        check_native(config, dtype)
    is_narrow = place.type != "cpu" or weights == "native"
    if dtype is None:
        dtype = torch.bfloat16 if is_narrow else torch.float32
    if weight_dtype is None:
        weight_dtype = dtype if is_narrow else torch.float32
    if min_rows is None:
        min_rows = _exact_rows(config) if place.type == "cpu" else 1
    with torch.device("meta"):
        model = Transformer(config, numerics or "plain", weights=weights, min_rows=min_rows, dtype=dtype)
    state = model.state_dict(keep_vars=True)
    for piece in pieces(config):
        if weights == "native" and expert_slice(piece.name) is not None:
            continue
        tensor = piece_of(state, piece)
        assert tensor.shape == piece.shape, f"{piece.name} is {tuple(tensor.shape)} in the model, not {piece.shape}"
    for name, tensor in state.items():
        if isinstance(tensor, nn.Parameter):
            is_matrix = tensor.ndim >= 2 and "hc_" not in name and not name.endswith(".ape")
            tensor.data = tensor.data.to(weight_dtype if is_matrix else torch.float32)
    return model.to_empty(device=place)


def check_native(config: ModelConfig, dtype: torch.dtype | None) -> None:
    """Raises ConfigError unless a model of these sizes can hold its weights natively."""
    if dtype not in (None, torch.bfloat16):
        raise ConfigError(f"dtype is {dtype}; products of FP8 rows and weights give bfloat16: leave it out")
    ragged = [p for p in pieces(config) if p.kind in ("block", "expert") and p.shape[1] % BLOCK]
    if ragged:
        raise ConfigError(
            f"weights='native' cannot hold {ragged[0].name} of shape {ragged[0].shape}: its input values must be a "
            f"multiple of {BLOCK}; use weights='wide'"
        )


def product_shapes(config: ModelConfig) -> set[tuple[int, int]]:
    """Every (out, in) that the model multiplies by, products that share an input stacked as the modules stack them."""
    c = config
    layers = (*c.layers, *c.mtp_layers)
    # Scores over four key blocks of 64, and sums of one block's values.
    shapes = {(c.vocab_size, c.hidden_size), (256, c.entry_dim), (c.value_dim, 64)}
    shapes |= _latent_shapes(c) if c.is_latent else _hybrid_shapes(c)
    if any(layer.has_index for layer in layers):
        shapes.add((256, c.index_head_dim))
    if any(layer.mlp == "experts" for layer in layers):
        shapes.add((c.n_routed_experts, c.hidden_size))
    for width in _mlp_widths(c):
        shapes |= {(2 * width, c.hidden_size), (c.hidden_size, width)}
    return shapes


def _mlp_widths(c: ModelConfig) -> set[int]:
    """Intermediate sizes of routed experts, shared experts and dense layers, as far as there are any."""
    kinds = {layer.mlp for layer in (*c.layers, *c.mtp_layers)}
    widths = {c.moe_intermediate_size, c.n_shared_experts * c.moe_intermediate_size} if "experts" in kinds else set()
    return widths | ({c.intermediate_size} if "dense" in kinds else set())


def _hybrid_shapes(c: ModelConfig) -> set[tuple[int, int]]:
    """V4's attention, hyper-connections and MTP projections."""
    query, index_query = c.num_attention_heads * c.head_dim, c.index_n_heads * c.index_head_dim
    shapes = {
        (c.q_lora_rank + c.head_dim, c.hidden_size),
        (query, c.q_lora_rank),
        (c.o_lora_rank, query // c.o_groups),
        (c.hidden_size, c.o_groups * c.o_lora_rank),
        (c.hc_mult * (c.hc_mult + 2), c.hc_mult * c.hidden_size),
        (c.hc_mult, c.hc_mult * c.hidden_size),
    }
    ratios = {layer.ratio for layer in c.layers}
    if 4 in ratios:
        raw = 4 * c.head_dim + 4 * c.index_head_dim + c.index_n_heads
        shapes |= {(query + index_query, c.q_lora_rank), (raw, c.hidden_size)}
    if 128 in ratios:
        shapes.add((2 * c.head_dim, c.hidden_size))
    if c.num_nextn_predict_layers:
        shapes.add((c.hidden_size, c.hidden_size))
    return shapes


def _latent_shapes(c: ModelConfig) -> set[tuple[int, int]]:
    """Latent attention in its absorbed form, its indexer, and V3's MTP projection."""
    query = c.num_attention_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim)
    has_index = any(layer.has_index for layer in c.layers)
    first = c.q_lora_rank or query
    shapes = {
        (first + c.entry_dim + (c.index_head_dim if has_index else 0), c.hidden_size),
        (c.kv_lora_rank, c.qk_nope_head_dim),
        (c.v_head_dim, c.kv_lora_rank),
        (c.hidden_size, c.num_attention_heads * c.v_head_dim),
    }
    if c.q_lora_rank:
        shapes.add((query + (c.index_n_heads * c.index_head_dim if has_index else 0), c.q_lora_rank))
    if has_index:
        shapes.add((c.index_n_heads, c.hidden_size))
    if c.num_nextn_predict_layers:
        shapes.add((c.hidden_size, 2 * c.hidden_size))
    return shapes


def _exact_rows(config: ModelConfig) -> int:
    return establish_min_rows(product_shapes(config), torch.get_num_threads())
