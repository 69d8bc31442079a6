"""Attention of each row over its window and its compressed entries, with a sink."""

from benthic.kernels.sparse_attention.op import sparse_attention
from benthic.kernels.sparse_attention.plan import BLOCK, WINDOW_BLOCKS, BlockTables, TileCapacity, plan_tiles
from benthic.kernels.sparse_attention.tiles import KeyTiles, TilePlan

__all__ = [
    "BLOCK",
    "BlockTables",
    "KeyTiles",
    "TileCapacity",
    "TilePlan",
    "WINDOW_BLOCKS",
    "plan_tiles",
    "sparse_attention",
]
