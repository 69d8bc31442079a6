"""In which order the CUDA kernels add a product's terms, and how they share out its work.

The order is a property of the weight alone: the input is cut into segments, each is summed from zero in steps of
`block_k`, and the segments' sums are added in order. The tile may follow the number of rows, because no sum depends on
it: a tensor core's result for one row is the same in tiles of any number of rows (tested on the device).
"""

from functools import cache
from typing import NamedTuple

import torch

# Programs that fill a large GPU twice: weights with fewer tiles of outputs are cut along the input.
ENOUGH_PROGRAMS = 256
OUTPUT_TILE = 64
# A weight of few outputs (a hyper-connection's 24, a gate's 256) is in float32 and has no other parallelism.
MOST_SEGMENTS = {True: 64, False: 16}
LEAST_SEGMENT = {True: 256, False: 512}


class Order(NamedTuple):
    """The order of one weight's sums: `segments` of `segment_len` inputs, each in steps of `block_k`."""

    block_k: int
    segments: int
    segment_len: int


class Tile(NamedTuple):
    """What one program makes: `rows` x `outputs` results, of one segment each if `is_split`, else of all."""

    rows: int
    outputs: int
    warps: int
    stages: int
    is_split: bool


@cache
def order_of(outputs: int, inputs: int, dtype: torch.dtype) -> Order:
    """The order for weights [outputs, inputs] multiplied in `dtype`. It knows nothing of rows: that is the law."""
    is_wide = dtype is torch.float32
    block_k = 32 if is_wide else 64
    segments, tiles = 1, -(-outputs // OUTPUT_TILE)
    while (
        segments * tiles < ENOUGH_PROGRAMS
        and segments < MOST_SEGMENTS[is_wide]
        and inputs >= 2 * segments * LEAST_SEGMENT[is_wide]
    ):
        segments *= 2
    steps = -(-inputs // (segments * block_k))
    return Order(block_k, segments, max(steps, 1) * block_k)


@cache
def tile_of(rows: int, outputs: int, batch: int, dtype: torch.dtype, order: Order) -> Tile:
    """The tile for `rows` rows with each of `batch` weights. Any tile gives the same bits; these were the fastest."""
    is_cut = order.segments > 1
    if rows <= 16:
        is_broad = dtype is not torch.float32 and outputs >= 4096
        return Tile(16, 128, 8, 4, is_cut) if is_broad else Tile(16, 64, 4, 4, is_cut)
    if rows <= 32:
        return Tile(32, 64, 4, 4, is_cut)
    programs = batch * -(-rows // 128) * -(-outputs // 128)
    if dtype is torch.float32:
        return Tile(64, 64, 4, 3, is_cut and programs < 64)
    if programs < 200:
        return Tile(64 if rows <= 64 else 128, 64, 4, 4, is_cut)
    return Tile(256, 128, 8, 3, False) if rows >= 1024 and order.segments <= 4 else Tile(128, 128, 8, 4, False)


def grouped_tile_of(rows: int, groups: int, dtype: torch.dtype) -> Tile:
    """The tile for `rows` rows of `groups` groups together, whose sizes the host does not know."""
    mean = -(-rows // groups)
    if mean <= 32:
        return Tile(16 if mean <= 16 else 32, 64, 4, 4, False)
    return Tile(64, 64, 4, 3, False) if dtype is torch.float32 else Tile(128, 128, 8, 3, False)
