"""Reading one key where it lies, wide or in an official format, for kernels that touch single rows."""

from typing import Any

from torch import Tensor

from benthic.kernels.kv_storage.cpu import decode_fp8, decode_index, fp8_source
from benthic.kernels.kv_storage.layout import PackedIndex, PackedKv, rotary_offset
from benthic.kernels.numba_kernel import bytes8, float32s, inlined, part

KvSource = tuple[int, int, int, int, tuple[int, int, int]]
"""Address, bytes of a packed row or 0, still dims, byte of the rotary dims, `fp8_source`."""

IndexSource = tuple[int, int, tuple[int, int, int]]
"""Address, bytes of a packed key or 0, `fp8_source`; 0 bytes a scale for FP4."""

NOT_FP8 = (0, 0, 0)


def kv_source(keys: Tensor | PackedKv) -> tuple[KvSource, Tensor]:
    """What `read_kv` needs, and the tensor to keep alive.

    Rows are float32, the rotary dims of packed ones too.
    """
    if isinstance(keys, PackedKv):
        data, still = keys.data.contiguous(), keys.dim - keys.rope_dim
        start = rotary_offset(keys.dim, keys.rope_dim, keys.form)
        return (data.data_ptr(), data.shape[1], still, start, fp8_source(still, keys.form)), data
    rows = keys.contiguous()
    return (rows.data_ptr(), 0, 0, 0, NOT_FP8), rows


def index_source(keys: Tensor | PackedIndex) -> tuple[IndexSource, Tensor]:
    """What `read_index` needs, and the tensor to keep alive."""
    if isinstance(keys, PackedIndex):
        data = keys.data.contiguous()
        layout = fp8_source(keys.dim, keys.form) if keys.form == "v3.2" else NOT_FP8
        return (data.data_ptr(), data.shape[1], layout), data
    rows = keys.contiguous()
    return (rows.data_ptr(), 0, NOT_FP8), rows


@part
def read_kv(source: Any, slot: int, vector: Any) -> None:
    """Copies the kv row of a slot to `vector`, float32 [d]."""
    address, width, still, rotary, layout = source
    if width == 0:
        _copy(float32s(address + 4 * slot * vector.size, (vector.size,)), vector)
        return
    decode_fp8(bytes8(address + slot * width, (width,)), vector[:still], layout)
    _copy(float32s(address + slot * width + rotary, (vector.size - still,)), vector[still:])


@part
def read_index(source: Any, slot: int, vector: Any) -> None:
    """Copies the indexer key of a slot to `vector`, float32 [di]."""
    address, width, layout = source
    if width == 0:
        _copy(float32s(address + 4 * slot * vector.size, (vector.size,)), vector)
        return
    data = bytes8(address + slot * width, (width,))
    if layout[2]:
        decode_fp8(data, vector, layout)
    else:
        decode_index(data, vector)


@inlined
def _copy(source: Any, target: Any) -> None:
    """An assignment of arrays would look for overlaps first."""
    for i in range(target.size):
        target[i] = source[i]
