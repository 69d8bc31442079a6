"""Reading packed keys inside Triton kernels: a run of columns of 64 rows, widened as `unpack_kv` and `unpack_index` do.

A run of columns lies within one scale group: its width divides the group's.
"""

import triton
import triton.language as tl


@triton.jit
def _power_of_two(code):
    """float32 of a UE8M0 byte."""
    bits = code.to(tl.int32) << 23
    bits = tl.where(code == 0, 1 << 22, bits)
    bits = tl.where(code == 255, 0x7FC00000, bits)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def load_fp8(
    data, slot, start, still: tl.constexpr, width: tl.constexpr, row_bytes: tl.constexpr, group: tl.constexpr,
    scale_bytes: tl.constexpr, scale_offset: tl.constexpr
):  # fmt: skip
    """float32 [64, width]: e4m3 values from column `start` times their scale, 0 beyond column `still` and slot < 0."""
    column = start + tl.arange(0, width)
    row = data + slot * row_bytes
    inside = (slot >= 0) & (start < still)
    codes = tl.load(row[:, None] + column[None, :], mask=inside[:, None] & (column < still)[None, :], other=0)
    place = row + scale_offset + start // group * scale_bytes
    if scale_bytes == 1:
        scale = _power_of_two(tl.load(place, mask=inside, other=0))
    else:
        scale = tl.load(place.to(tl.pointer_type(tl.float32)), mask=inside, other=0.0)
    return codes.to(tl.float8e4nv, bitcast=True).to(tl.float32) * scale[:, None]


@triton.jit
def load_kv(
    data, slot, start, dim: tl.constexpr, still: tl.constexpr, width: tl.constexpr, row_bytes: tl.constexpr,
    group: tl.constexpr, scale_bytes: tl.constexpr, scale_offset: tl.constexpr, rotary_offset: tl.constexpr,
    dtype: tl.constexpr
):  # fmt: skip
    """`dtype` [64, width]: columns from `start` of packed kv rows, 0 where slot < 0 or past the row's end."""
    column = start + tl.arange(0, width)
    values = load_fp8(data, slot, start, still, width, row_bytes, group, scale_bytes, scale_offset).to(dtype)
    rotary = (data + slot * row_bytes + rotary_offset).to(tl.pointer_type(dtype))
    turns = (slot >= 0)[:, None] & ((column >= still) & (column < dim))[None, :]
    turned = tl.load(rotary[:, None] + (column - still)[None, :], mask=turns, other=0.0)
    return tl.where((column < still)[None, :], values, turned)


@triton.jit
def load_fp4(data, slot, dim: tl.constexpr, width: tl.constexpr, row_bytes: tl.constexpr):
    """float32 [64, width]: whole indexer keys in V4's format; `width` >= 32 is a power of two."""
    pair = tl.arange(0, width // 2)
    row = data + slot * row_bytes
    inside = (slot >= 0)[:, None] & (pair < dim // 2)[None, :]
    byte = tl.load(row[:, None] + pair[None, :], mask=inside, other=0)
    codes = tl.interleave(byte & 15, byte >> 4).to(tl.int32)
    magnitude = codes & 7
    # 0, 0.5, 1, 1.5, 2, 3, 4, 6 in quarters.
    quarters = tl.where(magnitude < 2, 2 * magnitude, (2 + magnitude % 2) << (magnitude // 2))
    values = tl.where(codes < 8, quarters, -quarters).to(tl.float32) * 0.25
    group = tl.arange(0, width // 32)
    is_group = (slot >= 0)[:, None] & (group * 32 < dim)[None, :]
    scale = _power_of_two(tl.load(row[:, None] + dim // 2 + group[None, :], mask=is_group, other=0))
    return tl.reshape(tl.reshape(values, (64, width // 32, 32)) * scale[:, :, None], (64, width))
