"""The meaning of attention with keys and values of every head, over key tiles, by PyTorch's own attention.

For query h of row t over its visible keys j: o = sum_j e^(s_j - m) v_hj / sum_j e^(s_j - m), with
s_j = (q_h . k_hj) * scale and m = max_j s_j.
"""

import torch.nn.functional as F
from torch import Tensor

from benthic.kernels.precision import product_dtype
from benthic.kernels.sparse_attention.addresses import entry_slots, hidden_keys
from benthic.kernels.sparse_attention.tiles import KeyTiles


def attend_heads_ref(query: Tensor, keys_values: Tensor, tiles: KeyTiles, scale: float, picks: Tensor | None) -> Tensor:
    """Output [n*Q, H, d] of one group of tiles; query [R, H, d] and keys_values [H, slots, d + d] have equal widths."""
    _, heads, dim = query.shape
    exact = product_dtype(query)
    q = query.index_select(0, tiles.queries).to(exact).view(tiles.num_tiles, -1, heads, dim).transpose(1, 2)
    slots = entry_slots(tiles, 1, (0, tiles.num_blocks)) + tiles.entry_base
    rows = keys_values.index_select(1, slots.view(-1)).to(exact).view(heads, *slots.shape, 2 * dim)
    keys, values = rows.transpose(0, 1).split(dim, dim=-1)
    hidden = hidden_keys(tiles, (0, tiles.num_blocks), picks).to(exact)[:, None]
    out = F.scaled_dot_product_attention(q, keys, values, attn_mask=hidden, scale=scale)
    return out.to(query.dtype).transpose(1, 2).flatten(0, 1)
