"""Production shapes of products by Triton: Flash's in bf16, its gate in float32, its grouped output projection."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benthic.kernels.linear.kernel import multiply

ROWS = (1, 32, 128, 4096)
PRODUCTS = {
    "q_a and kv": (1, 1536, 4096, torch.bfloat16),
    "queries": (1, 32768, 1024, torch.bfloat16),
    "o_a": (8, 1024, 4096, torch.bfloat16),
    "gate": (1, 256, 4096, torch.float32),
}
"""Groups, outputs, inputs and dtype."""


def production() -> Iterator[tuple[str, Callable[[], object]]]:
    """(case, launch)."""
    for name, shape in PRODUCTS.items():
        for rows in ROWS:
            yield f"{name} M={rows}", lambda shape=shape, rows=rows: _multiply(rows, *shape)


def _multiply(rows: int, groups: int, outputs: int, inputs: int, dtype: torch.dtype) -> Tensor:
    x = torch.empty(rows, groups, inputs, dtype=dtype, device="meta")
    return multiply(x, torch.empty(groups, outputs, inputs, dtype=dtype, device="meta"), dtype)
