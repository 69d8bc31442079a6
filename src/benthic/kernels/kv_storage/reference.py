"""The meaning of the official storage of keys: the codes of `formats`, laid side by side (model.md 3.2)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from benthic.formats import dequantize_fp4, dequantize_fp8, quantize_fp4, quantize_fp8
from benthic.kernels.kv_storage.layout import INDEX_GROUP, KV_GROUP, index_bytes, kv_bytes, rotary_offset


def pack_kv_ref(rows: Tensor, rope_dim: int) -> Tensor:
    """See `pack_kv`."""
    dim = rows.shape[-1]
    codes, scale = quantize_fp8(rows[:, : dim - rope_dim], (1, KV_GROUP))
    rotary = rows[:, dim - rope_dim :].contiguous().view(torch.uint8)
    parts = torch.cat([codes.view(torch.uint8), scale.view(torch.uint8)], dim=1)
    parts = F.pad(parts, (0, rotary_offset(dim, rope_dim) - parts.shape[1]))
    return torch.cat([parts, rotary], dim=1)


def unpack_kv_ref(data: Tensor, dim: int, rope_dim: int, dtype: torch.dtype) -> Tensor:
    """See `unpack_kv`."""
    still = dim - rope_dim
    start = rotary_offset(dim, rope_dim)
    codes = data[:, :still].contiguous().view(torch.float8_e4m3fn)
    scale = data[:, still : still - (-still // KV_GROUP)].contiguous().view(torch.float8_e8m0fnu)
    values = dequantize_fp8(codes, scale, (1, KV_GROUP), dtype=dtype)
    rotary = data[:, start : kv_bytes(dim, rope_dim, dtype)].contiguous().view(dtype)
    return torch.cat([values, rotary], dim=1)


def pack_index_ref(rows: Tensor) -> Tensor:
    """See `pack_index`."""
    packed, scale = quantize_fp4(rows)
    parts = torch.cat([packed.view(torch.uint8), scale.view(torch.uint8)], dim=1)
    return F.pad(parts, (0, index_bytes(rows.shape[-1]) - parts.shape[1]))


def unpack_index_ref(data: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """See `unpack_index`."""
    end = dim // 2 - (-dim // INDEX_GROUP)
    scale = data[:, dim // 2 : end].contiguous().view(torch.float8_e8m0fnu)
    return dequantize_fp4(data[:, : dim // 2].contiguous(), scale, dtype=dtype)
