"""How the official formats of keys lie in bytes: one row a slot.

    kv row          e4m3 codes of the dims that do not rotate | their scales | rotary dims as they are
    indexer key     e2m1 codes, two a byte, low half first (V4), or e4m3 codes (V3.2) | their scales

All scales are powers of two. V4 keeps one for 64 values of a kv row and one for 32 of an indexer key, in a UE8M0 byte;
V3.2 one for 128 values of either, as a float32. Scales start and end at a multiple of their size, the rotary dims at
one of four bytes; zeros lie between. Of the released models V4's kv row takes 448 + 8 + 128 bytes (bfloat16 rotary
dims) and its indexer key 64 + 4, those of V3.2 take 512 + 16 + 128 and 128 + 4. V4's kv rows are filled up to whole
sectors of memory (608 bytes), so that a row's lines never share one: a kernel that gathers rows reads each sector once.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

KeyForm = Literal["v4", "v3.2"]
"""Whose format."""

INDEX_GROUP = 32
"""Values of an FP4 indexer key that share a scale."""
ALIGNMENT = 4


@dataclass(frozen=True, slots=True)
class Fp8Layout:
    """`group` values share a scale of `scale_bytes`: 1 for UE8M0, 4 for a float32.

    A kv row is filled up to a multiple of `row_alignment` bytes.
    """

    group: int
    scale_bytes: int
    row_alignment: int

    def scale_offset(self, count: int) -> int:
        """Byte at which the scales of `count` codes start."""
        return -(-count // self.scale_bytes) * self.scale_bytes

    def scale_end(self, count: int) -> int:
        """Byte after the last scale."""
        return self.scale_offset(count) + _groups(count, self.group) * self.scale_bytes

    def size(self, count: int) -> int:
        """Bytes of `count` values and their scales, whole fours."""
        return _aligned(self.scale_end(count))


FP8_LAYOUTS: dict[KeyForm, Fp8Layout] = {"v4": Fp8Layout(64, 1, 32), "v3.2": Fp8Layout(128, 4, ALIGNMENT)}


@dataclass(frozen=True, slots=True)
class PackedKv:
    """A kv buffer in an official format: `data` uint8 [slots, kv_bytes(...)], read as rows [slots, dim] of `dtype`."""

    data: Tensor
    dim: int
    rope_dim: int
    dtype: torch.dtype
    form: KeyForm = "v4"


@dataclass(frozen=True, slots=True)
class PackedIndex:
    """A buffer of indexer keys likewise: `data` uint8 [slots, index_bytes(dim, form)]."""

    data: Tensor
    dim: int
    dtype: torch.dtype
    form: KeyForm = "v4"


def kv_bytes(dim: int, rope_dim: int, dtype: torch.dtype, form: KeyForm = "v4") -> int:
    """Bytes of a kv row of `dim` values of which the last `rope_dim` rotate and stay in `dtype`."""
    return _aligned(rotary_offset(dim, rope_dim, form) + rope_dim * dtype.itemsize, FP8_LAYOUTS[form].row_alignment)


def rotary_offset(dim: int, rope_dim: int, form: KeyForm) -> int:
    """Byte at which the rotary dims of a kv row start."""
    return FP8_LAYOUTS[form].size(dim - rope_dim)


def index_bytes(dim: int, form: KeyForm = "v4") -> int:
    """Bytes of an indexer key of `dim` values, an even number in V4's format."""
    if form == "v3.2":
        return FP8_LAYOUTS[form].size(dim)
    return _aligned(dim // 2 + _groups(dim, INDEX_GROUP))


def _groups(count: int, group: int) -> int:
    return -(-count // group)


def _aligned(num_bytes: int, alignment: int = ALIGNMENT) -> int:
    return -(-num_bytes // alignment) * alignment
