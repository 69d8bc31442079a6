"""Production shapes of the norm by Triton: Flash's latents, heads and hidden vectors."""

from collections.abc import Callable, Iterator

import torch

from benthic.kernels.rms_norm.kernel import rms_norm_triton


def production() -> Iterator[tuple[str, Callable[[], object]]]:
    """(case, launch)."""
    for size in (512, 1024, 4096, 7168):
        x, gain = torch.empty(128, size, dtype=torch.bfloat16, device="meta"), torch.empty(size, device="meta")
        yield f"norm of {size}", lambda x=x, gain=gain: rms_norm_triton(x, gain, 1e-6)
