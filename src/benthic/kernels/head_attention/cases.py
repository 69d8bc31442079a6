"""Inputs of head_attention: passes of sparse_attention whose entries are single tokens, with keys of every head."""

from typing import Any

import torch

from benthic.kernels.sparse_attention.cases import Pass


def inputs(
    case: Pass, dtype: torch.dtype = torch.float32, *, heads: int = 3, key_dim: int = 6, value_dim: int = 5
) -> dict[str, Any]:
    """`case` has ratio 1 and no window; unused slots hold numbers too."""
    return {
        "query": torch.randn(case.num_rows, heads, key_dim, dtype=dtype),
        "keys": torch.randn(case.num_slots, heads, key_dim, dtype=dtype),
        "values": torch.randn(case.num_slots, heads, value_dim, dtype=dtype),
        "plan": case.plan,
        "scale": key_dim**-0.5,
    }
