"""Pieces of Triton kernels that hold whole vectors in registers: norm, rotation, Hadamard, rounding, storage.

A tile is [vectors, width]: vectors of `dim` values and zeros up to `width`, a power of two. Every sum runs within one
vector in an order that follows from the width, so a vector's bits ignore the others.
"""

import triton
import triton.language as tl

from benthic.kernels.quantize.kernel import divided, fp8_scale, to_e4m3


@triton.jit
def angles(cos, sin, row, dim: tl.constexpr, rope_dim: tl.constexpr, width: tl.constexpr):
    """Cosines and sines [width / 2] of one row, for pairs of neighbours: 1 and 0 for those that do not turn."""
    pair = tl.arange(0, width // 2) - (dim - rope_dim) // 2
    turns = (pair >= 0) & (pair < rope_dim // 2)
    c = tl.load(cos + row * (rope_dim // 2) + pair, mask=turns, other=1.0)
    return c, tl.load(sin + row * (rope_dim // 2) + pair, mask=turns, other=0.0)


@triton.jit
def turned(
    x, c, s, dim: tl.constexpr, rope_dim: tl.constexpr, vectors: tl.constexpr, width: tl.constexpr,
    dtype: tl.constexpr
):  # fmt: skip
    """Rotates neighbours in the last `rope_dim` of `dim` values by the `angles` of one row; rounded to `dtype`."""
    pair = tl.arange(0, width // 2) - (dim - rope_dim) // 2
    turns = (pair >= 0) & (pair < rope_dim // 2)
    a, b = tl.split(tl.reshape(x.to(tl.float32), (vectors, width // 2, 2)))
    cos_of, sin_of = tl.broadcast_to(c[None, :], a.shape), tl.broadcast_to(s[None, :], a.shape)
    first = tl.where(turns[None, :], tl.fma(a, cos_of, -(b * sin_of)), a)
    second = tl.where(turns[None, :], tl.fma(a, sin_of, b * cos_of), b)
    return tl.reshape(tl.join(first, second), (vectors, width)).to(dtype)


@triton.jit
def magnitude_bits(x):
    """The bits of |x|, int32: they order as the magnitudes do, NaN above infinity."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def fp8_groups(x, group: tl.constexpr, vectors: tl.constexpr, width: tl.constexpr):
    """e4m3 codes [vectors, groups, group] and scales [vectors, groups] of float32 tiles."""
    grouped = tl.reshape(x, (vectors, width // group, group))
    scale = fp8_scale(tl.max(magnitude_bits(grouped), 2), True)
    return to_e4m3(divided(grouped, scale[:, :, None], True)), scale


@triton.jit
def hadamard(x, vectors: tl.constexpr, width: tl.constexpr):
    """x . H / sqrt(width) in float32: a butterfly of the lowest index bit a round, each moving its bit to the top."""
    half: tl.constexpr = width // 2
    for bit in tl.static_range(10):
        if (1 << bit) < width:
            a, b = tl.split(tl.reshape(x, (vectors, half, 2)))
            x = tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 2, 1)), (vectors, width))
    return x * (width**-0.5)


@triton.jit
def fp4_groups(x, vectors: tl.constexpr, width: tl.constexpr):
    """e2m1 magnitudes and signs [vectors, groups, 32] and scales [vectors, groups] of float32 tiles."""
    floor: tl.constexpr = 6.0 * 2.0**-126
    grouped = tl.reshape(x, (vectors, width // 32, 32))
    amax_bits = tl.max(magnitude_bits(grouped), 2)
    amax = tl.maximum(amax_bits.to(tl.float32, bitcast=True), floor)
    bits = (amax * (1.0 / 6.0)).to(tl.int32, bitcast=True)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
    scale = (exponent << 23).to(tl.float32, bitcast=True)
    scale = tl.where(amax_bits >= 0x7F800000, float("nan"), scale)
    inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    size = magnitude_bits(grouped).to(tl.float32, bitcast=True) * inverse[:, :, None]
    size = tl.where(size > 6.0, 6.0, size)
    step = tl.where(size < 2.0, 0.5, tl.where(size < 4.0, 1.0, 2.0))
    # Adding and taking away 1.5 * 2^23 rounds to whole numbers, ties to even; dividing by the step is exact.
    size = (size / step + 12582912.0 - 12582912.0) * step
    return size, grouped.to(tl.int32, bitcast=True) < 0, scale


@triton.jit
def rounded_fp4(x, vectors: tl.constexpr, width: tl.constexpr, dtype: tl.constexpr):
    """What is left of a float32 tile after FP4 in groups of 32."""
    size, negative, scale = fp4_groups(x, vectors, width)
    value = size * scale[:, :, None]
    return tl.reshape(tl.where(negative, -value, value), (vectors, width)).to(dtype)


@triton.jit
def scale_bytes(scale):
    """UE8M0 bytes of powers of two; NaN is 255."""
    return ((scale.to(tl.int32, bitcast=True) >> 23) & 255).to(tl.uint8)


@triton.jit
def store_kv(
    x, buffer, slot, row_stride, dim: tl.constexpr, rope_dim: tl.constexpr, width: tl.constexpr,
    group: tl.constexpr, packed: tl.constexpr, scale_offset: tl.constexpr, rotary_offset: tl.constexpr
):  # fmt: skip
    """Rounds the still dims of one kv row [1, width] to FP8 (unless `group` is 0) and stores it; slot -1: nowhere."""
    column = tl.arange(0, width)[None, :]
    still: tl.constexpr = dim - rope_dim
    dtype: tl.constexpr = x.dtype
    kept = slot >= 0
    target = buffer + slot.to(tl.int64) * row_stride
    if group > 0:
        values = tl.where(column < still, x.to(tl.float32), 0.0)
        codes, scale = fp8_groups(values, group, 1, width)
        if packed:
            bytes = tl.reshape(codes.to(tl.uint8, bitcast=True), (1, width))
            tl.store(target + column, bytes, mask=kept & (column < still))
            number = tl.arange(0, width // group)[None, :]
            tl.store(target + scale_offset + number, scale_bytes(scale), mask=kept & (number * group < still))
            rotary = (target + rotary_offset).to(tl.pointer_type(dtype))
            tl.store(rotary + column - still, x, mask=kept & (column >= still) & (column < dim))
        else:
            value = tl.reshape(codes.to(tl.float32) * scale[:, :, None], (1, width)).to(dtype)
            tl.store(target + column, tl.where(column < still, value, x), mask=kept & (column < dim))
    else:
        tl.store(target + column, x, mask=kept & (column < dim))


@triton.jit
def store_index(
    x, buffer, slot, row_stride, dim: tl.constexpr, width: tl.constexpr, rounds: tl.constexpr, packed: tl.constexpr
):  # fmt: skip
    """Turns one indexer key [1, width] by Hadamard, rounds it to FP4 (or neither) and stores it; slot -1: nowhere."""
    column = tl.arange(0, width)[None, :]
    dtype: tl.constexpr = x.dtype
    kept = slot >= 0
    target = buffer + slot.to(tl.int64) * row_stride
    if rounds:
        # As the operations do one by one: the transform is rounded to the activations' dtype.
        y = hadamard(x.to(tl.float32), 1, width).to(dtype).to(tl.float32)
        if packed:
            size, negative, scale = fp4_groups(y, 1, width)
            code = tl.where(size < 2.0, 2.0 * size, tl.where(size < 4.0, size + 2.0, 0.5 * size + 4.0)).to(tl.int32)
            code = tl.reshape(tl.where(negative, code | 8, code), (1, width // 2, 2))
            low, high = tl.split(code)
            pair = tl.arange(0, width // 2)[None, :]
            tl.store(target + pair, (low | (high << 4)).to(tl.uint8), mask=kept & (pair < dim // 2))
            number = tl.arange(0, width // 32)[None, :]
            tl.store(target + dim // 2 + number, scale_bytes(scale), mask=kept & (number * 32 < dim))
        else:
            tl.store(target + column, rounded_fp4(y, 1, width, dtype), mask=kept & (column < dim))
    else:
        tl.store(target + column, x, mask=kept & (column < dim))
