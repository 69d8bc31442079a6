"""Official key storage on the CPU: one pass over each row. Same codes and values as the reference, bit for bit."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from benthic.formats import decode_e2m1
from benthic.kernels.kv_storage.layout import FP8_LAYOUTS, INDEX_GROUP, KeyForm, index_bytes, kv_bytes, rotary_offset
from benthic.kernels.numba_kernel import bytes8, float32s, inlined, kernel, part
from benthic.kernels.precision import wide

E4M3_VALUES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
E2M1_VALUES = decode_e2m1(torch.arange(16, dtype=torch.uint8)).numpy()
E4M3_MAX = np.float32(448.0)
E2M1_MAX = np.float32(6.0)
KV_FLOOR = np.float32(1e-4)
INDEX_FLOOR = np.float32(6.0 * 2.0**-126)


def pack_kv_cpu(rows: Tensor, rope_dim: int, form: KeyForm) -> Tensor:
    """See `pack_kv`."""
    count, dim = rows.shape
    still, start = dim - rope_dim, rotary_offset(dim, rope_dim, form)
    data = torch.zeros(count, kv_bytes(dim, rope_dim, rows.dtype, form), dtype=torch.uint8)
    _pack_fp8_rows(rows, still, data, form)
    rotary = rows[:, still:].contiguous().view(torch.uint8)
    data[:, start : start + rotary.shape[1]] = rotary
    return data


def unpack_kv_cpu(data: Tensor, dim: int, rope_dim: int, dtype: torch.dtype, form: KeyForm) -> Tensor:
    """See `unpack_kv`."""
    data = data.contiguous()
    rows = torch.empty(len(data), dim)
    still, start = dim - rope_dim, rotary_offset(dim, rope_dim, form)
    _unpack_fp8_rows(data, still, rows, form)
    rotary = data[:, start : start + rope_dim * dtype.itemsize].contiguous().view(dtype)
    if dtype is torch.float32:
        rows[:, still:] = rotary
        return rows
    return torch.cat([rows[:, :still].to(dtype), rotary], dim=1)


def pack_index_cpu(rows: Tensor, form: KeyForm) -> Tensor:
    """See `pack_index`."""
    count, dim = rows.shape
    data = torch.zeros(count, index_bytes(dim, form), dtype=torch.uint8)
    if form == "v3.2":
        _pack_fp8_rows(rows, dim, data, form)
        return data
    values = wide(rows).contiguous()
    _pack_index(values.data_ptr(), data.data_ptr(), count, dim, data.shape[1])
    return data


def unpack_index_cpu(data: Tensor, dim: int, dtype: torch.dtype, form: KeyForm) -> Tensor:
    """See `unpack_index`."""
    data = data.contiguous()
    rows = torch.empty(len(data), dim)
    if form == "v3.2":
        _unpack_fp8_rows(data, dim, rows, form)
    else:
        _unpack_index(data.data_ptr(), rows.data_ptr(), len(data), dim, data.shape[1])
    return rows.to(dtype)


def _pack_fp8_rows(rows: Tensor, still: int, data: Tensor, form: KeyForm) -> None:
    """Codes and scales of the first `still` values of rows [n, d] to the start of data [n, bytes]."""
    values = wide(rows).contiguous()
    sizes = (len(rows), rows.shape[1], still, data.shape[1])
    _pack_fp8(values.data_ptr(), data.data_ptr(), sizes, fp8_source(still, form))


def _unpack_fp8_rows(data: Tensor, still: int, rows: Tensor, form: KeyForm) -> None:
    sizes = (len(rows), rows.shape[1], still, data.shape[1])
    _unpack_fp8(data.data_ptr(), rows.data_ptr(), sizes, fp8_source(still, form))


def fp8_source(still: int, form: KeyForm) -> tuple[int, int, int]:
    """What `decode_fp8` needs to know of `still` codes: values a scale, the first scale's byte, bytes of a scale."""
    layout = FP8_LAYOUTS[form]
    return layout.group, layout.scale_offset(still), layout.scale_bytes


@kernel
def _pack_fp8(rows_at: int, data_at: int, sizes: tuple[int, int, int, int], layout: tuple[int, int, int]) -> None:
    count, dim, still, width = sizes
    group, scale_at, scale_bytes = layout
    rows, data = float32s(rows_at, (count, dim)), bytes8(data_at, (count, width))
    for row in range(count):
        values, target = rows[row, :still], data[row]
        for number in range((still + group - 1) // group):
            first, end = number * group, min((number + 1) * group, still)
            byte = _scale_byte(_amax(values[first:end], KV_FLOOR), E4M3_MAX)
            factor = scale_of(byte)
            if scale_bytes == 1:
                target[scale_at + number] = byte
            else:
                _store_float(factor, target[scale_at + 4 * number : scale_at + 4 * number + 4])
            for i in range(first, end):
                target[i] = _e4m3(values[i] / factor)


@kernel
def _unpack_fp8(data_at: int, rows_at: int, sizes: tuple[int, int, int, int], layout: tuple[int, int, int]) -> None:
    count, dim, still, width = sizes
    data, rows = bytes8(data_at, (count, width)), float32s(rows_at, (count, dim))
    for row in range(count):
        decode_fp8(data[row], rows[row, :still], layout)


@part
def decode_fp8(data: Any, values: Any, layout: Any) -> None:
    """Codes and scales of one row to as many values as there are; see `fp8_source`."""
    group, scale_at, scale_bytes = layout
    still = values.size
    for number in range((still + group - 1) // group):
        if scale_bytes == 1:
            factor = scale_of(data[scale_at + number])
        else:
            factor = _load_float(data[scale_at + 4 * number : scale_at + 4 * number + 4])
        for i in range(number * group, min((number + 1) * group, still)):
            values[i] = E4M3_VALUES[data[i]] * factor


@inlined
def _store_float(value: Any, target: Any) -> None:
    """The four bytes of a float32, the lowest first."""
    bits = np.float32(value).view(np.int32)
    for i in range(4):
        target[i] = np.uint8((bits >> np.int32(8 * i)) & np.int32(255))


@inlined
def _load_float(data: Any) -> Any:
    bits = np.int32(0)
    for i in range(4):
        bits |= np.int32(data[i]) << np.int32(8 * i)
    return np.int32(bits).view(np.float32)


@kernel
def _pack_index(rows_at: int, data_at: int, count: int, dim: int, width: int) -> None:
    rows, data = float32s(rows_at, (count, dim)), bytes8(data_at, (count, width))
    for row in range(count):
        values, target = rows[row], data[row]
        for group in range((dim + INDEX_GROUP - 1) // INDEX_GROUP):
            first, end = group * INDEX_GROUP, min((group + 1) * INDEX_GROUP, dim)
            byte = _scale_byte(_amax(values[first:end], INDEX_FLOOR), E2M1_MAX)
            target[dim // 2 + group] = byte
            factor = scale_of(byte)
            for i in range(first, end, 2):
                target[i // 2] = _e2m1(values[i] / factor) | (_e2m1(values[i + 1] / factor) << np.uint8(4))


@kernel
def _unpack_index(data_at: int, rows_at: int, count: int, dim: int, width: int) -> None:
    data, rows = bytes8(data_at, (count, width)), float32s(rows_at, (count, dim))
    for row in range(count):
        decode_index(data[row], rows[row])


@part
def decode_index(data: Any, values: Any) -> None:
    """Codes and scales of one indexer key to its values."""
    dim = values.size
    for group in range((dim + INDEX_GROUP - 1) // INDEX_GROUP):
        factor = scale_of(data[dim // 2 + group])
        for i in range(group * INDEX_GROUP, min((group + 1) * INDEX_GROUP, dim), 2):
            byte = data[i // 2]
            values[i] = E2M1_VALUES[byte & 15] * factor
            values[i + 1] = E2M1_VALUES[byte >> 4] * factor


@inlined
def scale_of(byte: Any) -> Any:
    """The float32 value of a UE8M0 byte: the exponent field itself, but for 2^-127 and NaN."""
    bits = np.int32(byte) << np.int32(23)
    if byte == 0:
        bits = np.int32(1 << 22)
    if byte == 255:
        bits = np.int32(0x7FC00000)
    return np.int32(bits).view(np.float32)


@part
def _amax(values: Any, floor: Any) -> Any:
    """The largest magnitude, at least `floor`; infinite where a value is not finite."""
    amax = floor
    for i in range(values.size):
        magnitude = abs(values[i])
        amax = max(amax, magnitude if magnitude < np.inf else np.float32(np.inf))
    return amax


@part
def _scale_byte(amax: Any, largest: Any) -> Any:
    """Byte of the smallest power of two under which amax fits `largest`, from the bits of amax * (1 / largest).

    255, which is NaN, for an infinite amax.
    """
    if amax == np.inf:
        return np.uint8(255)
    bits = np.float32(amax * (np.float32(1.0) / largest)).view(np.int32)
    exponent, mantissa = bits >> np.int32(23), bits & np.int32((1 << 23) - 1)
    if exponent == 0:
        return np.uint8(mantissa > (1 << 22))
    return np.uint8(exponent + (mantissa != 0))


@inlined
def _e4m3(value: Any) -> Any:
    """Nearest e4m3 code, ties to even, of a magnitude up to 448."""
    bits = np.float32(value).view(np.int32)
    sign = np.uint8((bits >> np.int32(24)) & np.int32(128))
    magnitude = np.float32(min(abs(value), E4M3_MAX))
    if magnitude < np.float32(2.0**-6):
        return sign | np.uint8(np.rint(magnitude * np.float32(512.0)))
    bits = magnitude.view(np.int32)
    bits += np.int32((1 << 19) - 1) + ((bits >> np.int32(20)) & np.int32(1))
    return sign | np.uint8((bits >> np.int32(20)) - np.int32((127 - 7) << 3))


@inlined
def _e2m1(value: Any) -> Any:
    """Nearest e2m1 code, ties to even, of a magnitude up to 6: steps of 1/2 to 2, of 1 to 4, of 2 to 6."""
    sign = np.uint8((np.float32(value).view(np.int32) >> np.int32(28)) & np.int32(8))
    magnitude = np.float32(min(abs(value), E2M1_MAX))
    if magnitude < 2:
        return sign | np.uint8(np.rint(magnitude * np.float32(2.0)))
    if magnitude < 4:
        return sign | np.uint8(np.rint(magnitude) + 2)
    return sign | np.uint8(np.rint(magnitude * np.float32(0.5)) + 4)
