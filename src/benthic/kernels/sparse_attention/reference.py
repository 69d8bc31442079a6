"""The meaning of attention over key tiles, in plain PyTorch.

For query h of row t over its visible keys j, with sink b_h (model.md 2.4 step 6; family.md 3 without one):

    s_j = (q . k_j) * scale
    o   = sum_j e^(s_j - m) v_j / (sum_j e^(s_j - m) + e^(b_h - m)),   m = max(b_h, max_j s_j)

The value v_j is the key, or its first numbers.

Sums go block by block: 64 keys in one product or one sum, then a fold over blocks in a fixed pattern. Long contexts
are read in pieces of whole fours of blocks, twice: once for the maximum, once for the sums. The bits are the same.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from benthic.kernels.precision import product_dtype, wide
from benthic.kernels.sparse_attention.addresses import Blocks, Keys, hidden_keys, read_blocks
from benthic.kernels.sparse_attention.tiles import BLOCK, KeyTiles

NO_SINK = torch.finfo(torch.float32).min


class Attended(NamedTuple):
    """Result for one group of tiles.

    `output` [n*Q, H, dv] in the query's dtype; `weights` [n, Q, H, B*64] unnormalised fp32; `denominator` [n, Q, H].
    """

    output: Tensor
    weights: Tensor
    denominator: Tensor


def attend_tiles_ref(
    query: Tensor,
    keys: Keys,
    tiles: KeyTiles,
    sink: Tensor | None,
    scale: float,
    picks: Tensor | None,
    value_dim: int | None = None,
) -> Attended:
    """Attention of one group of tiles; see `sparse_attention` for the arguments."""
    blocks, scores = _scores(query, keys, tiles, scale, picks, (0, tiles.num_blocks))
    sink = sink_logits(query, sink)
    top = torch.maximum(scores.amax(-1), sink)
    weights = torch.exp(scores - top[..., None])
    denominator = fold_blocks(_block_sums(weights), 3) + torch.exp(sink - top)
    output = fold_blocks(_values(weights, blocks[..., :value_dim], query.dtype), 1)
    output = wide(output).view(*denominator.shape, -1) / denominator[..., None]
    return Attended(output.to(query.dtype).flatten(0, 1), weights, denominator)


def attend_pieces_ref(
    query: Tensor,
    keys: Keys,
    tiles: KeyTiles,
    sink: Tensor | None,
    scale: float,
    picks: Tensor | None,
    value_dim: int | None,
    piece: int,
) -> Tensor:
    """The output of `attend_tiles_ref` with temporaries of `piece` blocks at a time (a multiple of 4)."""
    cuts = pieces_of(tiles.num_blocks, piece)
    sink = sink_logits(query, sink)
    top = sink.expand(tiles.num_tiles, tiles.rows_per_tile, -1)
    for cut in cuts:
        top = torch.maximum(_scores(query, keys, tiles, scale, picks, cut)[1].amax(-1), top)
    total: Tensor | None = None
    output: Tensor | None = None
    for cut in cuts:
        blocks, scores = _scores(query, keys, tiles, scale, picks, cut)
        weights = torch.exp(scores - top[..., None])
        total = fold_blocks(_block_sums(weights), 3, total)
        output = fold_blocks(_values(weights, blocks[..., :value_dim], query.dtype), 1, output)
    assert total is not None and output is not None
    denominator = total + torch.exp(sink - top)
    output = wide(output).view(*denominator.shape, -1) / denominator[..., None]
    return output.to(query.dtype).flatten(0, 1)


def sink_logits(query: Tensor, sink: Tensor | None) -> Tensor:
    """The sink of each head, at least float32. None is the lowest finite logit.

    Its weight beside any key is an exact zero, and a row that sees no key divides zero by its one.
    """
    if sink is not None:
        return wide(sink)
    return torch.full(query.shape[1:2], NO_SINK, dtype=wide(query[:0]).dtype, device=query.device)


def pieces_of(num_blocks: int, piece: int) -> list[Blocks]:
    """Blocks 0 .. num_blocks - 1 in runs of `piece`."""
    assert piece % 4 == 0, f"a piece of {piece} blocks would cut a four of the fold"
    return [(first, min(first + piece, num_blocks)) for first in range(0, num_blocks, piece)]


def fold_blocks(partial: Tensor, dim: int, start: Tensor | None = None) -> Tensor:
    """Sums over blocks as ((b0 + b1) + (b2 + b3)) + ((b4 + b5) + (b6 + b7)) + ..., left to right in fours.

    Blocks that are masked whole add an exact zero, so a longer list leaves the bits of a shorter one. `start` is the
    sum of the blocks before.
    """
    blocks = partial.unbind(dim)
    assert len(blocks) % 4 == 0, f"number of blocks ({len(blocks)}) must be a multiple of 4"
    total = start
    for i in range(0, len(blocks), 4):
        four = (blocks[i] + blocks[i + 1]) + (blocks[i + 2] + blocks[i + 3])
        total = four if total is None else total + four
    assert total is not None
    return total


def _scores(
    query: Tensor, keys: Keys, tiles: KeyTiles, scale: float, picks: Tensor | None, blocks: Blocks
) -> tuple[Tensor, Tensor]:
    """Keys [n, p*64, d] of some blocks in the product's dtype, and scores [n, Q, H, p*64]."""
    _, heads, dim = query.shape
    exact = product_dtype(query)
    rows = read_blocks(keys, tiles, blocks).to(exact)
    q = query.index_select(0, tiles.queries).to(exact).view(tiles.num_tiles, tiles.rows_per_tile * heads, dim)
    scores = wide(torch.bmm(q, rows.transpose(1, 2))).view(tiles.num_tiles, tiles.rows_per_tile, heads, -1) * scale
    return rows, scores + hidden_keys(tiles, blocks, picks).to(scores.dtype)[:, :, None, :]


def _block_sums(weights: Tensor) -> Tensor:
    return weights.unflatten(-1, (-1, BLOCK)).sum(-1)


def _values(weights: Tensor, blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """Per-block sums of weighted values [n, p, Q*H, dv]; weights are rounded to the activation dtype first."""
    num_tiles, num_keys, _ = blocks.shape
    num_blocks = num_keys // BLOCK
    p = weights.to(dtype).to(blocks.dtype).view(num_tiles, -1, num_blocks, BLOCK).transpose(1, 2)
    return wide(torch.matmul(p, blocks.unflatten(1, (num_blocks, BLOCK))))
