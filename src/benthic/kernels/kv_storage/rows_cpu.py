"""Reading one key where it lies, wide or in the official format, for kernels that touch single rows."""

from typing import Any

from torch import Tensor

from benthic.kernels.kv_storage.cpu import decode_index, decode_kv
from benthic.kernels.kv_storage.layout import PackedIndex, PackedKv, rotary_offset
from benthic.kernels.numba_kernel import bytes8, float32s, inlined, part


def kv_source(keys: Tensor | PackedKv) -> tuple[tuple[int, int, int, int], Tensor]:
    """What `read_kv` needs, and the tensor to keep alive: address, bytes of a packed row or 0, still dims, rotary byte.

    Rows are float32, the rotary dims of packed ones too.
    """
    if isinstance(keys, PackedKv):
        data = keys.data.contiguous()
        return (data.data_ptr(), data.shape[1], keys.dim - keys.rope_dim, rotary_offset(keys.dim, keys.rope_dim)), data
    rows = keys.contiguous()
    return (rows.data_ptr(), 0, 0, 0), rows


def index_source(keys: Tensor | PackedIndex) -> tuple[tuple[int, int], Tensor]:
    """What `read_index` needs, and the tensor to keep alive: address, bytes of a packed key or 0."""
    if isinstance(keys, PackedIndex):
        data = keys.data.contiguous()
        return (data.data_ptr(), data.shape[1]), data
    rows = keys.contiguous()
    return (rows.data_ptr(), 0), rows


@part
def read_kv(source: Any, slot: int, vector: Any) -> None:
    """Copies the kv row of a slot to `vector`, float32 [d]."""
    address, width, still, rotary = source
    if width == 0:
        _copy(float32s(address + 4 * slot * vector.size, (vector.size,)), vector)
        return
    decode_kv(bytes8(address + slot * width, (width,)), vector[:still])
    _copy(float32s(address + slot * width + rotary, (vector.size - still,)), vector[still:])


@part
def read_index(source: Any, slot: int, vector: Any) -> None:
    """Copies the indexer key of a slot to `vector`, float32 [di]."""
    address, width = source
    if width == 0:
        _copy(float32s(address + 4 * slot * vector.size, (vector.size,)), vector)
        return
    decode_index(bytes8(address + slot * width, (width,)), vector)


@inlined
def _copy(source: Any, target: Any) -> None:
    """An assignment of arrays would look for overlaps first."""
    for i in range(target.size):
        target[i] = source[i]
