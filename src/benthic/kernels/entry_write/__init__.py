"""What follows the input products of V4's attention: norms, rotation, rounding, and rows written where they lie."""

from benthic.kernels.entry_write.op import compress_entries, queries_and_entries, query_heads, write_kv
from benthic.kernels.entry_write.reference import Queries
from benthic.kernels.entry_write.rounding import IndexRounding, round_index_vector, round_kv_entry
from benthic.kernels.entry_write.targets import BlockEnds, CompressorSide, RawState, RowTarget

__all__ = [
    "BlockEnds",
    "CompressorSide",
    "IndexRounding",
    "Queries",
    "RawState",
    "RowTarget",
    "compress_entries",
    "queries_and_entries",
    "query_heads",
    "round_index_vector",
    "round_kv_entry",
    "write_kv",
]
