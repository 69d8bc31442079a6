"""A model with room for its weights and nothing in it yet."""

import torch
from torch import nn

from benthic.kernels.exactness import establish_min_rows
from benthic.models.checkpoint.placement import chosen_device
from benthic.models.checkpoint.source import piece_of
from benthic.models.checkpoint.table import pieces
from benthic.models.config import ModelConfig
from benthic.models.numerics import Policy
from benthic.models.transformer import Transformer


def empty_model(
    config: ModelConfig,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    numerics: Policy | None = None,
    weight_dtype: torch.dtype | None = None,
    min_rows: int | None = None,
) -> Transformer:
    """A Transformer whose parameters and buffers are allocated and not set.

    Args:
        config: sizes.
        device: None takes CUDA where there is one.
        dtype: of activations; None takes float32 on CPU, bfloat16 on CUDA.
        numerics: None is "plain".
        weight_dtype: of matrices; None takes float32 on CPU (holding the values of any file exactly) and `dtype` on
            CUDA. Vectors and mHC parameters are float32 always.
        min_rows: rows of a product that make it exact; None finds out on CPU, where it depends on the machine.

    Raises:
        ConfigError: the device or the numerics do not exist.
    """
    place = chosen_device(device)
    if dtype is None:
        dtype = torch.float32 if place.type == "cpu" else torch.bfloat16
    if weight_dtype is None:
        weight_dtype = torch.float32 if place.type == "cpu" else dtype
    if min_rows is None:
        min_rows = _exact_rows(config) if place.type == "cpu" else 1
    with torch.device("meta"):
        model = Transformer(config, numerics or "plain", min_rows=min_rows, dtype=dtype)
    state = model.state_dict(keep_vars=True)
    for piece in pieces(config):
        tensor = piece_of(state, piece)
        assert tensor.shape == piece.shape, f"{piece.name} is {tuple(tensor.shape)} in the model, not {piece.shape}"
    for name, tensor in state.items():
        if isinstance(tensor, nn.Parameter):
            is_matrix = tensor.ndim >= 2 and "hc_" not in name and not name.endswith(".ape")
            tensor.data = tensor.data.to(weight_dtype if is_matrix else torch.float32)
    return model.to_empty(device=place)


def product_shapes(config: ModelConfig) -> set[tuple[int, int]]:
    """Every (out, in) that the model multiplies by, products that share an input stacked as the modules stack them."""
    c = config
    matrices: set[tuple[int, int]] = {(c.vocab_size, c.hidden_size), (c.n_routed_experts, c.hidden_size)}
    # Scores over four key blocks of 64, and sums of one block's values.
    matrices |= {(256, c.head_dim), (c.head_dim, 64)}
    group_dim = c.num_attention_heads * c.head_dim // c.o_groups
    query, index_query = c.num_attention_heads * c.head_dim, c.index_n_heads * c.index_head_dim
    matrices |= {
        (c.q_lora_rank + c.head_dim, c.hidden_size),
        (query, c.q_lora_rank),
        (c.o_lora_rank, group_dim),
        (c.hidden_size, c.o_groups * c.o_lora_rank),
        (2 * c.moe_intermediate_size, c.hidden_size),
        (c.hidden_size, c.moe_intermediate_size),
        (c.hc_mult * (c.hc_mult + 2), c.hc_mult * c.hidden_size),
        (c.hc_mult, c.hc_mult * c.hidden_size),
    }
    ratios = {layer.ratio for layer in c.layers}
    if 4 in ratios:
        raw = 4 * c.head_dim + 4 * c.index_head_dim + c.index_n_heads
        matrices |= {(query + index_query, c.q_lora_rank), (raw, c.hidden_size), (256, c.index_head_dim)}
    if 128 in ratios:
        matrices.add((2 * c.head_dim, c.hidden_size))
    if c.num_nextn_predict_layers:
        matrices.add((c.hidden_size, c.hidden_size))
    return matrices


def _exact_rows(config: ModelConfig) -> int:
    return establish_min_rows(product_shapes(config), torch.get_num_threads())
