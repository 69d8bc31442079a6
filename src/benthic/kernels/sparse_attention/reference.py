"""The meaning of attention over key tiles, in plain PyTorch.

For query h of row t over its visible keys j, with sink b_h (model.md 2.4 step 6):

    s_j = (q . k_j) * scale
    o   = sum_j e^(s_j - m) k_j / (sum_j e^(s_j - m) + e^(b_h - m)),   m = max(b_h, max_j s_j)

Sums go block by block: 64 keys in one product or one sum, then a fold over blocks in a fixed pattern.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from benthic.kernels.precision import product_dtype, wide
from benthic.kernels.sparse_attention.plan import BLOCK, WINDOW_BLOCKS
from benthic.kernels.sparse_attention.tiles import KeyTiles


class Attended(NamedTuple):
    """Result for one group of tiles.

    `output` [n*Q, H, d] in the query's dtype; `weights` [n, Q, H, B*64] unnormalised fp32; `denominator` [n, Q, H].
    """

    output: Tensor
    weights: Tensor
    denominator: Tensor


def attend_tiles_ref(
    query: Tensor, keys: Tensor, tiles: KeyTiles, sink: Tensor, scale: float, keep: Tensor | None
) -> Attended:
    """Attention of one group of tiles; see `sparse_attention` for the arguments."""
    rows, heads, dim = query.shape
    per_tile = tiles.rows_per_tile
    num_tiles, num_blocks = tiles.blocks.shape
    exact = product_dtype(query)
    blocks = keys.view(-1, BLOCK * dim).index_select(0, tiles.blocks.view(-1)).to(exact)
    blocks = blocks.view(num_tiles, num_blocks * BLOCK, dim)
    q = query.index_select(0, tiles.queries).to(exact).view(num_tiles, per_tile * heads, dim)
    scores = wide(torch.bmm(q, blocks.transpose(1, 2))).view(num_tiles, per_tile, heads, -1) * scale
    scores = scores + _bias(tiles, keep, scores.dtype)
    sink = wide(sink)
    top = torch.maximum(scores.amax(-1), sink)
    weights = torch.exp(scores - top[..., None])
    sums = weights.view(num_tiles, per_tile, heads, num_blocks, BLOCK).sum(-1)
    denominator = fold_blocks(sums, 3) + torch.exp(sink - top)
    output = fold_blocks(_values(weights, blocks, query.dtype, num_blocks), 1)
    output = wide(output).view(num_tiles, per_tile, heads, dim) / denominator[..., None]
    return Attended(output.to(query.dtype).view(-1, heads, dim), weights, denominator)


def fold_blocks(partial: Tensor, dim: int) -> Tensor:
    """Sums over blocks as ((b0 + b1) + (b2 + b3)) + ((b4 + b5) + (b6 + b7)) + ..., left to right in fours.

    Blocks that are masked whole add an exact zero, so a longer list leaves the bits of a shorter one.
    """
    blocks = partial.unbind(dim)
    assert len(blocks) % 4 == 0, f"number of blocks ({len(blocks)}) must be a multiple of 4"
    total: Tensor | None = None
    for i in range(0, len(blocks), 4):
        four = (blocks[i] + blocks[i + 1]) + (blocks[i + 2] + blocks[i + 3])
        total = four if total is None else total + four
    assert total is not None
    return total


def _bias(tiles: KeyTiles, keep: Tensor | None, dtype: torch.dtype) -> Tensor:
    bias = tiles.bias.to(dtype)
    if keep is None:
        return bias
    window = WINDOW_BLOCKS * BLOCK
    entries = bias[..., window:].masked_fill(~keep[:, :, None, :], float("-inf"))
    return torch.cat([bias[..., :window], entries], dim=-1)


def _values(weights: Tensor, blocks: Tensor, dtype: torch.dtype, num_blocks: int) -> Tensor:
    """Per-block sums of weighted keys [n, B, Q*H, d]; weights are rounded to the activation dtype first."""
    num_tiles, _, dim = blocks.shape
    p = weights.to(dtype).to(blocks.dtype).view(num_tiles, -1, num_blocks, BLOCK).transpose(1, 2)
    return wide(torch.matmul(p, blocks.view(num_tiles, num_blocks, BLOCK, dim)))
