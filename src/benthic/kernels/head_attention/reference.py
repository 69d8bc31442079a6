"""The meaning of attention with keys and values of every head, over key tiles, in plain PyTorch.

For query h of row t over its visible keys j: o = sum_j e^(s_j - m) v_hj / sum_j e^(s_j - m), with
s_j = (q_h . k_hj) * scale and m = max_j s_j. Blocks of 64 keys are summed and folded as in `sparse_attention`, so that
a row's bits depend on its own keys only.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from benthic.kernels.precision import product_dtype, wide
from benthic.kernels.sparse_attention.addresses import hidden_keys, read_blocks
from benthic.kernels.sparse_attention.reference import NO_SINK, fold_blocks
from benthic.kernels.sparse_attention.tiles import BLOCK, KeyTiles


def attend_heads_ref(query: Tensor, keys_values: Tensor, tiles: KeyTiles, scale: float, picks: Tensor | None) -> Tensor:
    """Output [n*Q, H, dv] of one group of tiles; see `head_attention` for the arguments."""
    _, heads, key_dim = query.shape
    per_tile, whole = tiles.rows_per_tile, (0, tiles.num_blocks)
    exact = product_dtype(query)
    q = query.index_select(0, tiles.queries).to(exact).view(tiles.num_tiles, per_tile, heads, key_dim)
    # Products of fewer rows might add in another order.
    q = F.pad(q, (0, 0, 0, 0, 0, BLOCK - per_tile)).transpose(1, 2)
    rows = read_blocks(keys_values.flatten(1), tiles, whole).to(exact)
    rows = rows.view(tiles.num_tiles, -1, heads, keys_values.shape[-1]).transpose(1, 2)
    keys, values = rows.split([key_dim, rows.shape[-1] - key_dim], dim=-1)
    scores = wide(torch.matmul(q, keys.transpose(2, 3)))[:, :, :per_tile] * scale
    scores = scores + hidden_keys(tiles, whole, picks).to(scores.dtype)[:, None]
    top = scores.amax(-1, keepdim=True).clamp(min=NO_SINK)
    weights = torch.exp(scores - top)
    by_block = weights.unflatten(-1, (-1, BLOCK))  # [n, H, Q, B, 64]
    # Zero beside any key, one where a row has none: its output is then zeros.
    total = fold_blocks(by_block.sum(-1), 3) + torch.exp(NO_SINK - top[..., 0])
    p = F.pad(by_block.to(query.dtype).to(exact).transpose(2, 3), (0, 0, 0, BLOCK - per_tile))
    sums = fold_blocks(torch.matmul(p, values.unflatten(2, (-1, BLOCK))), 2)[:, :, :per_tile]
    output = wide(sums) / total[..., None]
    return output.to(query.dtype).transpose(1, 2).flatten(0, 1)
