"""Production shapes of SwiGLU, alone and rounded for a native product."""

from collections.abc import Callable, Iterator

import torch

from benthic.kernels.swiglu.kernel import swiglu_rows_cuda, swiglu_triton


def production() -> Iterator[tuple[str, Callable[[], object]]]:
    """(case, launch)."""
    for rows in (1, 4096):
        given = torch.empty(rows, 4096, dtype=torch.bfloat16, device="meta")
        yield f"swiglu rows={rows}", lambda given=given: swiglu_rows_cuda(given, 10.0, "ue8m0")
        yield f"alone rows={rows}", lambda given=given: swiglu_triton(given, None, 10.0, torch.bfloat16)
