"""Selection on a Hopper GPU: one launch for all rows, see `select.cu`.

How a row is cut among blocks follows from the shape alone and is no matter of bits: counting has no order.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from benthic.kernels.cuda_library import CudaLibrary

PROCESSORS = 132
"""Of an H200, on which the cuts were measured."""
SMALL_SLICE = 8192
"""Scores that one block takes alone; more are shared by a cluster while processors are idle."""
MAX_CLUSTER = 16
FEW_THREADS, MANY_THREADS = 256, 512
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_TYPES = [_POINTER] * 4 + [_INT] * 8 + [_POINTER]


class Visible(NamedTuple):
    """How many scores of a row count: (positions[row] + 1) // ratio, none in places past `used`.

    `positions` int64 [rows]; `used` int64 [rows / per_tile]: places of each tile that hold a row.
    """

    positions: Tensor
    used: Tensor
    per_tile: int
    ratio: int


def select_topk_cuda(
    scores: Tensor, k: int, visible: Visible | None = None, cluster: int | None = None, threads: int | None = None
) -> Tensor:
    """See `select_topk`; on the device alone, so that a graph may hold it.

    Args:
        scores: CUDA, at most float32. Scores past a row's visible ones are not read.
        visible: None where whole rows are.
        cluster: blocks of a row, a power of two up to 16; None for the measured choice.
    """
    width = scores.shape[-1]
    values = scores.to(torch.float32).contiguous()
    rows = values.numel() // width if width else 0
    picks = torch.empty((*scores.shape[:-1], min(k, width)), dtype=torch.int32, device=scores.device)
    if not picks.numel():
        return picks
    cluster = cluster or blocks_of_row(rows, width)
    threads = threads or (FEW_THREADS if rows > 2 * PROCESSORS else MANY_THREADS)
    given, per_tile, ratio = (0, 0), 1, 1
    if visible is not None:
        assert visible.positions.is_contiguous() and visible.used.is_contiguous(), "addresses are handed over"
        given = (visible.positions.data_ptr(), visible.used.data_ptr())
        per_tile, ratio = visible.per_tile, visible.ratio
    stream = torch.cuda.current_stream(scores.device).cuda_stream
    sizes = (rows, width, picks.shape[-1], min(k, width), per_tile, ratio, cluster, threads)
    _library().function("select_topk", _TYPES)(values.data_ptr(), *given, picks.data_ptr(), *sizes, stream)
    return picks


def blocks_of_row(rows: int, width: int) -> int:
    """As many blocks as leave each a small slice, while there are processors for them."""
    cluster = 1
    while cluster < MAX_CLUSTER and width > SMALL_SLICE * cluster and 2 * cluster * rows <= PROCESSORS:
        cluster *= 2
    return cluster


@cache
def _library() -> CudaLibrary:
    return CudaLibrary(Path(__file__).with_name("select.cu"))
