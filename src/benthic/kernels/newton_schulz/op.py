"""The door of newton_schulz."""

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, require_reference
from benthic.kernels.newton_schulz.reference import newton_schulz_ref
from benthic.kernels.precision import wide


def newton_schulz(g: Tensor, compute_dtype: torch.dtype | None = None, *, impl: Impl = "auto") -> Tensor:
    """The nearest semi-orthogonal matrix to each matrix of `g`, nearly.

    Args:
        g: [..., n, m]; leading dims are independent matrices (experts, groups).
        compute_dtype: of the products; None means bfloat16 on CUDA and at least float32 on the CPU.

    Returns:
        Like `g`: singular values within 2e-3 of 1 (float32 products) or 1e-2 (bfloat16) where those of `g` span less
        than about 1e4; a zero matrix stays zero.

    Raises:
        KernelInputError: not a matrix.

    Source: training.md 2.1. Deterministic.
    """
    if g.dim() < 2:
        raise KernelInputError(f"g has shape {tuple(g.shape)}; it must be [..., n, m]")
    require_reference(impl, "newton_schulz")
    if compute_dtype is None:
        compute_dtype = torch.bfloat16 if g.is_cuda else wide(g[..., :0]).dtype
    rows, columns = g.shape[-2:]
    if g.numel() == 0:
        return g.clone()
    matrices = wide(g).reshape(-1, rows, columns)
    # The Gram matrix is formed over the rows, so the rows must be the short side.
    is_tall = rows > columns
    result = newton_schulz_ref(matrices.transpose(1, 2) if is_tall else matrices, compute_dtype)
    return (result.transpose(1, 2) if is_tall else result).reshape(g.shape).to(g.dtype)
