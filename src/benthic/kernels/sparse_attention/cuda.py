"""Attention over packed V4 keys on Hopper, by the CUDA kernels of attend.cu: the call, its sizes and its schedule.

A row's list is its window by place and then its entries or picks: see the source for the one order of its sums. Which
schedule runs is a matter of speed alone: all give the same bits.
"""

import ctypes
from collections.abc import Callable, Sequence
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
WIDENED = (-1, 0, 0)
"""The schedule whose keys are widened once for all rows of a group."""
WIDE_ROW_BYTES = DIM * 2
WIDE_WINDOW = 3 * BLOCK
"""Positions that a tile's rows see, in whole blocks."""
FEWEST_READS = 8
"""How often a widened key must be read on average: at 4, what is gained is what widening took."""
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
        schedule: (blocks a program of scores, columns a program of values, blocks requested ahead), zeros for whole
            rows a program, `WIDENED`; None chooses by the number of rows.
    """
    call = _Call(query, keys, sink, tiles, scale, picks, order, inverse_rope)
    each, width, depth = call.schedule(workspace_bytes) if schedule is None else schedule
    if (each, width, depth) == WIDENED:
        workspace_bytes -= call.widen()
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
        self.num_listed = WINDOW_PLACES + entries
        self.most_blocks = 2 + -(-entries // BLOCK)
        self.num_chunks = -(-self.most_blocks // CHUNK)
        rope = (None, None) if inverse_rope is None else inverse_rope
        self.tensors = [
            *(query.contiguous(), keys.data, self.out, sink.contiguous().float(), order),
            *(tiles.queries, tiles.positions, tiles.used, tiles.sequence, tiles.window_table, tiles.entry_table),
            *(None if picks is None else picks.contiguous(), *rope),
        ]
        self.widened: list[Tensor | None] = [None, None]

    def schedule(self, workspace_bytes: int) -> tuple[int, int, int]:
        """(blocks a program of scores, columns a program of values, blocks requested ahead); zeros for whole rows."""
        units, num_wide = self.num_rows * self.num_groups, self.num_wide()
        is_shared = num_wide > 0 and num_wide * FEWEST_READS <= units * self.num_listed
        if is_shared and units > FEW_UNITS and num_wide * WIDE_ROW_BYTES <= workspace_bytes // 2:
            return WIDENED
        if units > FEW_UNITS or units * self.most_blocks * SCORE_BYTES > workspace_bytes:
            return 0, 0, 0
        if units <= 4:
            return 1, 64, 4
        return 3 if self.most_blocks <= 12 else 5, 128, 1

    def row_bytes(self, each: int) -> int:
        """Workspace that grows with the rows of a launch."""
        scores = self.most_blocks * SCORE_BYTES if each > 0 else 0
        return self.num_groups * (scores + (self.num_chunks * CHUNK_BYTES if self.num_chunks > 1 else 0))

    def run(self, first: int, count: int, each: int, width: int, depth: int) -> None:
        """Attends rows first .. first + count - 1 of the group."""
        units, device = count * self.num_groups, self.out.device
        num_scores = units * self.most_blocks * GROUP if each > 0 else 0
        num_partials = units * self.num_chunks * GROUP if self.num_chunks > 1 else 0
        space = [
            torch.empty(size, device=device)
            for size in (num_scores * BLOCK, num_scores, num_partials * DIM, 2 * num_partials)
        ]
        stream = torch.cuda.current_stream(device).cuda_stream
        _kernels()(*self._arguments(first, count, space), self.scale, each, width, depth, stream)

    def num_wide(self) -> int:
        """Rows of the workspace of widened keys; 0 where they are not known to be shared."""
        tiles = self.tiles
        if tiles.rows_per_tile != BLOCK or not tiles.num_runs:
            return 0
        return tiles.num_tiles * WIDE_WINDOW + tiles.num_runs * tiles.max_visible

    def widen(self) -> int:
        """Widens the keys that the group's rows see; returns the bytes that they take from now on."""
        num_wide, device = self.num_wide(), self.out.device
        assert num_wide, "keys are widened for tiles of 64 rows whose runs are known"
        rows = torch.empty(num_wide, WIDE_ROW_BYTES, dtype=torch.uint8, device=device)
        self.widened = [rows, torch.empty(self.tiles.num_tiles, dtype=torch.int32, device=device)]
        stream = torch.cuda.current_stream(device).cuda_stream
        _widening()(*self._arguments(0, self.num_rows, [None] * 4), self.tiles.num_runs, stream)
        return num_wide * WIDE_ROW_BYTES

    def _arguments(self, first: int, count: int, space: Sequence[Tensor | None]) -> tuple[object, object]:
        """`tensors` and `sizes` of attend.cu."""
        tiles = self.tiles
        tensors = (*self.tensors, *space, *self.widened)
        addresses = [None if one is None else one.data_ptr() for one in tensors]
        entry_pages = 0 if tiles.entry_table is None else tiles.entry_table.shape[1]
        sizes = [first, self.out.shape[1], tiles.rows_per_tile, self.num_picks, self.most_blocks]
        sizes += [tiles.window_table.shape[1], tiles.window_page, tiles.window, entry_pages, tiles.entry_page]
        sizes += [tiles.entry_base, tiles.ratio, self.keys.data.shape[1], tiles.queries.shape[0], tiles.max_visible]
        sizes += [count]
        return (ctypes.c_void_p * len(addresses))(*addresses), (ctypes.c_int * len(sizes))(*sizes)


@cache
def _library() -> CudaLibrary:
    return CudaLibrary(Path(__file__).with_name("attend.cu"))


@cache
def _kernels() -> Callable[..., None]:
    types = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_int, ctypes.c_int, ctypes.c_int]
    return _library().function("sparse_attention", [*types, ctypes.c_void_p])


@cache
def _widening() -> Callable[..., None]:
    types = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    return _library().function("widen_attention_keys", types)
