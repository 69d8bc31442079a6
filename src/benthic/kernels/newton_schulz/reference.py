"""Hybrid Newton-Schulz: eight fast iterations, then two that settle (training.md 2.1).

X <- aX + b(XX')X + c(XX')^2 X on X / |X|_F. The fast triple brings every singular value near 1 but not to it; the
second one converges to 1.
"""

import torch
from torch import Tensor

FAST = (3.4445, -4.7750, 2.0315)
SETTLING = (2.0, -1.5, 0.5)
SCHEDULE = (FAST,) * 8 + (SETTLING,) * 2


def newton_schulz_ref(g: Tensor, compute_dtype: torch.dtype) -> Tensor:
    """`g` [B, n, m] with n <= m, at least float32; products in `compute_dtype`."""
    # The largest entry first: squares of a tiny gradient would underflow in the norm.
    largest = g.abs().amax((-2, -1), keepdim=True)
    scaled = g / torch.where(largest > 0, largest, 1.0)
    norm = torch.linalg.matrix_norm(scaled, keepdim=True)
    x = (scaled / torch.where(norm > 0, norm, 1.0)).to(compute_dtype)
    for a, b, c in SCHEDULE:
        gram = torch.bmm(x, x.transpose(1, 2))
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x
