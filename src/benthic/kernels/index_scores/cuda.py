"""Index scores on a Hopper GPU from packed keys, see `scores.cu`.

A score is a function of its row and its key: tiles, pieces, pages and neighbours are not in its bits. Queries that went
through the rounding of the keys' format are multiplied as FP8; others are exact too, but slow.
"""

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, uses_cuda_kernel
from benthic.kernels.cuda_library import CudaLibrary
from benthic.kernels.kv_storage import PackedIndex
from benthic.kernels.sparse_attention.addresses import Blocks, IndexKeys
from benthic.kernels.sparse_attention.tiles import BLOCK, KeyTiles

HEADS, DIM = 64, 128
"""Of every released indexer."""
COPY_BYTES = 16
"""What addresses and sizes of copies to shared memory are multiples of."""
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_TYPES = [_POINTER] * 9 + [_INT] * 9 + [ctypes.c_int64, ctypes.c_float, _POINTER]


def takes_cuda(impl: Impl, query: Tensor, keys: IndexKeys, tiles: KeyTiles) -> bool:
    """True if the kernel should score these tiles: on Hopper, packed keys of a released indexer.

    How many rows there are is not asked, so that all passes of a model take one kernel.

    Raises:
        KernelInputError: `impl` is "cuda", and the kernel cannot.
    """
    if not uses_cuda_kernel(impl, query):
        return False
    fits = query.dtype is torch.bfloat16 and query.shape[1:] == (HEADS, DIM) and isinstance(keys, PackedIndex)
    if fits:
        page, data = tiles.entry_page, keys.data
        sizes_fit = page.bit_count() == tiles.ratio.bit_count() == 1 and page * data.shape[1] % COPY_BYTES == 0
        fits = sizes_fit and data.is_contiguous() and data.data_ptr() % COPY_BYTES == 0
    if not fits and impl == "cuda":
        raise KernelInputError(
            f"impl='cuda' got {query.dtype} queries {tuple(query.shape)} and pages of {tiles.entry_page} entries at a "
            f"ratio of {tiles.ratio}; it takes bfloat16 queries [rows, {HEADS}, {DIM}], packed keys, pages of a power "
            "of two from 4 on, and ratios of a power of two"
        )
    return fits


def index_scores_cuda(
    query: Tensor, gamma: Tensor, keys: PackedIndex, tiles: KeyTiles, blocks: Blocks, gamma_scale: float = 1.0
) -> Tensor:
    """See `index_scores`; places without a row of their own see nothing."""
    first, end = blocks
    shape = (tiles.num_tiles, tiles.rows_per_tile, (end - first) * BLOCK)
    out = torch.full(shape, -torch.inf, device=query.device)
    write_visible_scores(query, gamma, keys, tiles, blocks, out, gamma_scale)
    return out


def write_visible_scores(
    query: Tensor,
    gamma: Tensor,
    keys: PackedIndex,
    tiles: KeyTiles,
    blocks: Blocks,
    out: Tensor,
    gamma_scale: float = 1.0,
) -> None:
    """Writes to `out` float32 [n, Q, (end - first) * 64] what each query sees, and leaves the rest as it is."""
    table = tiles.entry_table
    assert table is not None, "a layer of ratio 0 has no entries"
    gamma = gamma.float() if gamma.stride(1) == 1 else gamma.float().contiguous()
    tensors = [query, keys.data, tiles.queries, tiles.positions, tiles.used, tiles.sequence, table]
    tensors = [tensor.contiguous() for tensor in tensors]
    tensors.insert(1, gamma)
    addresses = [tensor.data_ptr() for tensor in (*tensors, out)]
    sizes = (tiles.num_tiles, tiles.rows_per_tile, *blocks, table.shape[1], _bits(tiles.entry_page), _bits(tiles.ratio))
    form = 0 if keys.form == "v4" else 1
    device = query.device
    if out.numel():
        stream = torch.cuda.current_stream(device).cuda_stream
        weighing = (gamma.stride(0), gamma_scale)
        programs = _processors(device.index or 0)
        _library().function("index_scores", _TYPES)(*addresses, *sizes, form, programs, *weighing, stream)


def _bits(power: int) -> int:
    """log2."""
    return power.bit_length() - 1


@cache
def _processors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


@cache
def _library() -> CudaLibrary:
    return CudaLibrary(Path(__file__).with_name("scores.cu"))
