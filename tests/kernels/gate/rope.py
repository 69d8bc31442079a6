"""Production shapes of the rotation by Triton: Flash's attention outputs and an entry, forward and back."""

from collections.abc import Callable, Iterator

import torch

from benthic.kernels.rope.kernel import apply_rope_triton


def production() -> Iterator[tuple[str, Callable[[], object]]]:
    """(case, launch)."""
    angles = torch.empty(128, 32, device="meta")
    for shape in ((128, 64, 512), (128, 512)):
        x = torch.empty(shape, dtype=torch.bfloat16, device="meta")
        yield f"turn {len(shape) - 1} dims", lambda x=x: apply_rope_triton(x, angles, angles, True)
