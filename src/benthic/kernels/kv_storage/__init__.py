"""Keys of the cache in the official formats: FP8 kv rows, and FP4 or FP8 indexer keys, in bytes."""

from benthic.kernels.kv_storage.layout import KeyForm, PackedIndex, PackedKv, index_bytes, kv_bytes
from benthic.kernels.kv_storage.op import pack_index, pack_kv, unpack_index, unpack_kv

__all__ = [
    "KeyForm",
    "PackedIndex",
    "PackedKv",
    "index_bytes",
    "kv_bytes",
    "pack_index",
    "pack_kv",
    "unpack_index",
    "unpack_kv",
]
