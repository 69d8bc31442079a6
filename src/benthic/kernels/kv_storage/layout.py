"""How the official formats of keys lie in bytes: one row a slot.

    kv row          e4m3 codes of the dims that do not rotate | their UE8M0 scales, one for 64 | rotary dims as they are
    indexer key     e2m1 codes, two a byte, low half first    | their UE8M0 scales, one for 32

Scales are followed by zeros up to a multiple of four bytes. The released model's kv row takes 448 + 8 + 128 bytes
(bfloat16 rotary dims), its indexer key 64 + 4.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

KV_GROUP = 64
INDEX_GROUP = 32
ALIGNMENT = 4


@dataclass(frozen=True, slots=True)
class PackedKv:
    """A kv buffer in the official format: `data` uint8 [slots, kv_bytes(...)], read as rows [slots, dim] of `dtype`."""

    data: Tensor
    dim: int
    rope_dim: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class PackedIndex:
    """A buffer of indexer keys likewise: `data` uint8 [slots, index_bytes(dim)]."""

    data: Tensor
    dim: int
    dtype: torch.dtype


def kv_bytes(dim: int, rope_dim: int, dtype: torch.dtype) -> int:
    """Bytes of a kv row of `dim` values of which the last `rope_dim` rotate and stay in `dtype`."""
    return rotary_offset(dim, rope_dim) + rope_dim * dtype.itemsize


def rotary_offset(dim: int, rope_dim: int) -> int:
    """Byte at which the rotary dims of a kv row start."""
    still = dim - rope_dim
    return _aligned(still + _groups(still, KV_GROUP))


def index_bytes(dim: int) -> int:
    """Bytes of an indexer key of `dim` values, an even number."""
    return _aligned(dim // 2 + _groups(dim, INDEX_GROUP))


def _groups(count: int, group: int) -> int:
    return -(-count // group)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
