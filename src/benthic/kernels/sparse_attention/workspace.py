"""How much of a group of tiles is worked on at once, so that temporaries stay below a bound whatever the context."""

from typing import NamedTuple

from benthic.kernels.sparse_attention.tiles import BLOCK

DEFAULT_WORKSPACE_BYTES = 256 << 20
WIDE_BYTES = 4

CACHED_BYTES = 2 << 20
"""What stays in a core's cache between a product and what is made of it."""

LEAST_PRODUCT_ROWS = 256


class Portion(NamedTuple):
    """Tiles in one call, and key blocks in one piece (a multiple of 4)."""

    num_tiles: int
    num_blocks: int


def portion(num_tiles: int, num_blocks: int, block_bytes: int, workspace_bytes: int) -> Portion:
    """Cuts `num_tiles` tiles of `num_blocks` blocks, where one tile takes `block_bytes` for each block of a piece.

    All blocks at once where a single tile can afford it, since then keys are read once; else one tile at a time in
    pieces. Four blocks of one tile are the least, even above the bound: the fold has no smaller unit.
    """
    affordable = workspace_bytes // max(block_bytes, 1)
    if affordable >= num_blocks:
        return Portion(max(1, min(num_tiles, affordable // num_blocks)), num_blocks)
    return Portion(1, max(4, affordable // 4 * 4))


def attention_block_bytes(rows_per_tile: int, heads: int, dim: int) -> int:
    """Keys as stored and widened; scores, scaled scores, weights and their casts; partial sums and their cast."""
    return score_block_bytes(rows_per_tile, heads, dim) + WIDE_BYTES * 2 * rows_per_tile * heads * dim


def score_block_bytes(rows_per_tile: int, heads: int, dim: int) -> int:
    """The same where few blocks have their sums at a time (`sums_bytes`)."""
    return WIDE_BYTES * (2 * BLOCK * dim + 4 * rows_per_tile * heads * BLOCK)


def sums_bytes(rows_per_tile: int, heads: int, dim: int) -> int:
    """Sums of the values of single blocks, of as many as are held at once."""
    return max(CACHED_BYTES, 4 * WIDE_BYTES * rows_per_tile * heads * dim)


def cached_rows(rows_per_tile: int, heads: int, dim: int, num_blocks: int) -> int:
    """How many rows of a tile are best worked on together: as many as have their scores in cache.

    But enough for products in which reading the keys does not count.
    """
    rows = rows_per_tile
    while rows > 1 and WIDE_BYTES * rows * heads * num_blocks * BLOCK > CACHED_BYTES:
        if rows // 2 * heads < max(LEAST_PRODUCT_ROWS, dim):
            break
        rows //= 2
    return rows


def index_block_bytes(rows_per_tile: int, heads: int, dim: int) -> int:
    """Keys as stored and widened, products and their weighted copy; scores and what selection makes of them."""
    rows = rows_per_tile * heads
    return WIDE_BYTES * BLOCK * (2 * dim + 2 * rows + 12 * rows_per_tile)


def single_rows_bytes(num_keys: int, heads: int, dim: int) -> int:
    """What rows one by one take: the keys of one of them, their addresses, and scores."""
    return num_keys * (WIDE_BYTES * (dim + heads) + 3 * 8)
