"""Production shapes of products with weights widened from FP8."""

from collections.abc import Callable, Iterator

import torch

from benthic.kernels.linear.weights import Fp8Weight
from benthic.kernels.linear.widened import multiply_widened


def production() -> Iterator[tuple[str, Callable[[], object]]]:
    """(case, launch)."""
    on = torch.device("meta")
    weight = Fp8Weight(
        torch.empty(8, 1024, 4096, dtype=torch.float8_e4m3fn, device=on), torch.empty(8, 8, 32, device=on)
    )
    for rows in (1, 32, 64, 128, 4096):
        x = torch.empty(rows, 8, 4096, dtype=torch.bfloat16, device=on)
        yield f"widened M={rows}", lambda x=x: multiply_widened(x, weight, quantizes=True)
