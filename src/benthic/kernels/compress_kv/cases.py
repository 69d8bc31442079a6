"""Inputs of compress_kv: raw rows of one sequence, and the blocks that a run completes."""

from typing import Any

import numpy as np
import torch

from benthic.kernels.compress_kv.blocks import plan_completed
from benthic.kernels.sparse_attention.cases import Run


def inputs(
    ratio: int, length: int, dtype: torch.dtype = torch.float32, *, dim: int = 12, start: int = 0
) -> dict[str, Any]:
    """Raw rows lie in reverse order of positions, so that slots are not positions."""
    width = dim * (2 if ratio == 4 else 1)
    total = start + length
    blocks = plan_completed(
        [Run(0, 0, start, length)],
        ratio,
        lambda _, position: np.ascontiguousarray(total - 1 - position),
        torch.device("cpu"),
    )
    return {
        "raw": torch.randn(total, 2 * width, dtype=dtype),
        "ape": torch.randn(ratio, width, dtype=dtype),
        "blocks": blocks,
    }
