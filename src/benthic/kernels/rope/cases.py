"""Inputs of apply_rope for any number of rows."""

from typing import Any

import torch

from benthic.kernels.rope.op import RopeTable, rope_frequencies, rope_table

ROW_INPUTS = ("x", "table")


def inputs(rows: int, dtype: torch.dtype = torch.float32, *, heads: int = 3, dim: int = 22) -> dict[str, Any]:
    """Eight of the `dim` values turn. Positions reach a million, where float32 angles are as coarse as 0.06."""
    positions = torch.randint(0, 1_000_000, (rows,))
    table = rope_table(positions, rope_frequencies(8, 10000.0, None))
    table = RopeTable(table.cos.to(dtype), table.sin.to(dtype)) if dtype == torch.float64 else table
    return {"x": torch.randn(rows, heads, dim, dtype=dtype), "table": table}
