"""Attention of each row over its window and its compressed entries, with a sink."""

from benthic.kernels.sparse_attention.addresses import IndexKeys, Keys
from benthic.kernels.sparse_attention.op import sparse_attention
from benthic.kernels.sparse_attention.plan import SHORT_RUN, KeyTables, TileCapacity, plan_tiles
from benthic.kernels.sparse_attention.tiles import BLOCK, WINDOW_BLOCKS, KeyTiles, TilePlan
from benthic.kernels.sparse_attention.workspace import DEFAULT_WORKSPACE_BYTES

__all__ = [
    "BLOCK",
    "DEFAULT_WORKSPACE_BYTES",
    "IndexKeys",
    "KeyTables",
    "KeyTiles",
    "Keys",
    "SHORT_RUN",
    "TileCapacity",
    "TilePlan",
    "WINDOW_BLOCKS",
    "plan_tiles",
    "sparse_attention",
]
