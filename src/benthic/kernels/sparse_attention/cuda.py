"""Attention over packed V4 keys on Hopper, by the CUDA kernels of attend.cu: the call, its sizes and its schedule.

A row's list is its window by place and then its entries or picks: see the source for the one order of its sums. Which
schedule runs is a matter of speed alone: both give the same bits.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from benthic.kernels.cuda_library import CudaLibrary
from benthic.kernels.kv_storage import PackedKv
from benthic.kernels.rope import RopeTable
from benthic.kernels.sparse_attention.addresses import Keys
from benthic.kernels.sparse_attention.tiles import BLOCK, KeyTiles

DIM, ROPE_DIM, WINDOW_PLACES = 512, 64, 128
GROUP = 64
"""Heads of a program."""
ROW_ALIGNMENT = 32
"""Bytes: every line of a key must lie within whole sectors of memory."""
CHUNK = 26
"""Blocks of a list that one program adds; a matter of bits, for longer lists."""
FEW_UNITS = 40
"""Rows times groups of heads up to which a row's blocks are spread over programs."""
SCORE_BYTES = GROUP * BLOCK * 4 + GROUP * 4
"""Of a block and a group of heads: scores and their maxima."""
CHUNK_BYTES = GROUP * DIM * 4 + 2 * GROUP * 4
"""Of a chunk and a group of heads: a partial result, its references and sums."""


def is_for_cuda(query: Tensor, keys: Keys, tiles: KeyTiles, value_dim: int) -> bool:
    """True if the kernels take such inputs: what follows from dtype, shape and storage only."""
    if not isinstance(keys, PackedKv) or query.dtype is not torch.bfloat16 or keys.dtype is not torch.bfloat16:
        return False
    is_v4 = keys.form == "v4" and (keys.dim, keys.rope_dim, value_dim) == (DIM, ROPE_DIM, DIM)
    is_aligned = keys.data.shape[1] % ROW_ALIGNMENT == 0 and keys.data.data_ptr() % ROW_ALIGNMENT == 0
    return is_v4 and is_aligned and query.shape[1] % GROUP == 0 and 0 < tiles.window <= WINDOW_PLACES


def attend_tiles_cuda(
    query: Tensor,
    keys: PackedKv,
    sink: Tensor,
    tiles: KeyTiles,
    scale: float,
    picks: Tensor | None,
    order: Tensor | None,
    inverse_rope: RopeTable | None,
    workspace_bytes: int,
    schedule: tuple[int, int, int] | None = None,
) -> Tensor:
    """Attention of one group of tiles; see `sparse_attention` for the arguments.

    Args:
        order: int64 [R], the place of each row if this is the only group: the result is [R, H, 512]. None: it is
            [n*Q, H, 512], and places without a row of their own are left as they were allocated.
        schedule: (blocks a program of scores, columns a program of values, blocks requested ahead), or zeros for whole
            rows a program; None chooses by the number of rows.
    """
    call = _Call(query, keys, sink, tiles, scale, picks, order, inverse_rope)
    each, width, depth = call.schedule(workspace_bytes) if schedule is None else schedule
    a_row = call.row_bytes(each)
    at_once = call.num_rows if not a_row else max(1, min(call.num_rows, workspace_bytes // a_row))
    for first in range(0, call.num_rows, at_once):
        call.run(first, min(at_once, call.num_rows - first), each, width, depth)
    return call.out


class _Call:
    """Arguments of the kernels for one group of tiles."""

    def __init__(
        self,
        query: Tensor,
        keys: PackedKv,
        sink: Tensor,
        tiles: KeyTiles,
        scale: float,
        picks: Tensor | None,
        order: Tensor | None,
        inverse_rope: RopeTable | None,
    ) -> None:
        self.scale, self.tiles, self.keys = scale, tiles, keys
        self.num_rows = tiles.queries.shape[0] if order is None else order.shape[0]
        self.num_groups = query.shape[1] // GROUP
        self.out = query.new_empty(self.num_rows, query.shape[1], DIM)
        self.num_picks = 0 if picks is None else picks.shape[-1]
        entries = tiles.max_visible if picks is None else min(self.num_picks, tiles.max_visible)
        self.most_blocks = 2 + -(-entries // BLOCK)
        self.num_chunks = -(-self.most_blocks // CHUNK)
        rope = (None, None) if inverse_rope is None else inverse_rope
        self.tensors = [
            *(query.contiguous(), keys.data, self.out, sink.contiguous().float(), order),
            *(tiles.queries, tiles.positions, tiles.used, tiles.sequence, tiles.window_table, tiles.entry_table),
            *(None if picks is None else picks.contiguous(), *rope),
        ]

    def schedule(self, workspace_bytes: int) -> tuple[int, int, int]:
        """(blocks a program of scores, columns a program of values, blocks requested ahead); zeros for whole rows."""
        units = self.num_rows * self.num_groups
        if units > FEW_UNITS or units * self.most_blocks * SCORE_BYTES > workspace_bytes:
            return 0, 0, 0
        if units <= 4:
            return 1, 64, 4
        return 3 if self.most_blocks <= 12 else 5, 128, 1

    def row_bytes(self, each: int) -> int:
        """Workspace that grows with the rows of a launch."""
        scores = self.most_blocks * SCORE_BYTES if each else 0
        return self.num_groups * (scores + (self.num_chunks * CHUNK_BYTES if self.num_chunks > 1 else 0))

    def run(self, first: int, count: int, each: int, width: int, depth: int) -> None:
        """Attends rows first .. first + count - 1 of the group."""
        tiles, units, device = self.tiles, count * self.num_groups, self.out.device
        num_scores = units * self.most_blocks * GROUP if each else 0
        num_partials = units * self.num_chunks * GROUP if self.num_chunks > 1 else 0
        space = [
            torch.empty(size, device=device)
            for size in (num_scores * BLOCK, num_scores, num_partials * DIM, 2 * num_partials)
        ]
        addresses = [None if one is None else one.data_ptr() for one in (*self.tensors, *space)]
        entry_pages = 0 if tiles.entry_table is None else tiles.entry_table.shape[1]
        sizes = [first, self.out.shape[1], tiles.rows_per_tile, self.num_picks, self.most_blocks]
        sizes += [tiles.window_table.shape[1], tiles.window_page, tiles.window, entry_pages, tiles.entry_page]
        sizes += [tiles.entry_base, tiles.ratio, self.keys.data.shape[1], tiles.queries.shape[0], count]
        stream = torch.cuda.current_stream(device).cuda_stream
        pointers, integers = (ctypes.c_void_p * len(addresses))(*addresses), (ctypes.c_int * len(sizes))(*sizes)
        _kernels()(pointers, integers, self.scale, each, width, depth, stream)


@cache
def _kernels() -> Callable[..., None]:
    library = CudaLibrary(Path(__file__).with_name("attend.cu"))
    types = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_int, ctypes.c_int, ctypes.c_int]
    return library.function("sparse_attention", [*types, ctypes.c_void_p])
