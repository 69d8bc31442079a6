"""The meaning of the official storage of keys: the codes of `formats`, side by side (model.md 3.2, family.md 5)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from benthic.formats import dequantize_fp4, dequantize_fp8, quantize_fp4, quantize_fp8, ue8m0_decode
from benthic.kernels.kv_storage.layout import (
    FP8_LAYOUTS,
    INDEX_GROUP,
    KeyForm,
    index_bytes,
    kv_bytes,
    rotary_offset,
)


def pack_kv_ref(rows: Tensor, rope_dim: int, form: KeyForm) -> Tensor:
    """See `pack_kv`."""
    still = rows.shape[-1] - rope_dim
    rotary = rows[:, still:].contiguous().view(torch.uint8)
    parts = torch.cat([_pack_fp8(rows[:, :still], form), rotary], dim=1)
    return F.pad(parts, (0, kv_bytes(rows.shape[-1], rope_dim, rows.dtype, form) - parts.shape[1]))


def unpack_kv_ref(data: Tensor, dim: int, rope_dim: int, dtype: torch.dtype, form: KeyForm) -> Tensor:
    """See `unpack_kv`."""
    start = rotary_offset(dim, rope_dim, form)
    rotary = data[:, start : start + rope_dim * dtype.itemsize].contiguous().view(dtype)
    return torch.cat([_unpack_fp8(data, dim - rope_dim, dtype, form), rotary], dim=1)


def pack_index_ref(rows: Tensor, form: KeyForm) -> Tensor:
    """See `pack_index`."""
    if form == "v3.2":
        return _pack_fp8(rows, form)
    packed, scale = quantize_fp4(rows)
    parts = torch.cat([packed.view(torch.uint8), scale.view(torch.uint8)], dim=1)
    return F.pad(parts, (0, index_bytes(rows.shape[-1]) - parts.shape[1]))


def unpack_index_ref(data: Tensor, dim: int, dtype: torch.dtype, form: KeyForm) -> Tensor:
    """See `unpack_index`."""
    if form == "v3.2":
        return _unpack_fp8(data, dim, dtype, form)
    end = dim // 2 - (-dim // INDEX_GROUP)
    scale = data[:, dim // 2 : end].contiguous().view(torch.float8_e8m0fnu)
    return dequantize_fp4(data[:, : dim // 2].contiguous(), scale, dtype=dtype)


def _pack_fp8(rows: Tensor, form: KeyForm) -> Tensor:
    """Codes, scales, zeros up to a whole four of bytes."""
    layout, count = FP8_LAYOUTS[form], rows.shape[-1]
    codes, scale = quantize_fp8(rows, (1, layout.group))
    stored = scale if layout.scale_bytes == 1 else ue8m0_decode(scale)
    padded = F.pad(codes.view(torch.uint8), (0, layout.scale_offset(count) - count))
    return F.pad(
        torch.cat([padded, stored.view(torch.uint8)], dim=1), (0, layout.size(count) - layout.scale_end(count))
    )


def _unpack_fp8(data: Tensor, count: int, dtype: torch.dtype, form: KeyForm) -> Tensor:
    layout = FP8_LAYOUTS[form]
    codes = data[:, :count].contiguous().view(torch.float8_e4m3fn)
    stored = data[:, layout.scale_offset(count) : layout.scale_end(count)].contiguous()
    scale = stored.view(torch.float8_e8m0fnu if layout.scale_bytes == 1 else torch.float32)
    return dequantize_fp8(codes, scale, (1, layout.group), dtype=dtype)
