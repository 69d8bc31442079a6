"""The door of sample."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, uses_cpu_kernel, uses_triton_kernel
from benthic.kernels.inputs import require_dtype, require_floats
from benthic.kernels.sample.reference import Cuts, sample_ref


def sample(
    logits: Tensor,
    *,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    seeds: Tensor,
    positions: Tensor,
    impl: Impl = "auto",
) -> Tensor:
    """Draws one token a row; the draw of (seed, position) is the same in any batch.

    Order: temperature, then top-k, then top-p of what is left, then min-p.

    Args:
        logits: float32 [B, V]; -inf forbids a token, NaN likewise.
        temperature: float32 [B]; 0 takes the largest logit, the lower index on ties.
        top_k: int64 [B]; 0 is off. None: off for all rows; without any of the three cuts nothing is ranked.
        top_p: float32 [B] in (0, 1]; 1 is off. The best token is always kept. None: off for all rows.
        min_p: float32 [B] in [0, 1]; 0 is off. Relative to the most likely token. None: off for all rows.
        seeds: int64 [B].
        positions: int64 [B], the position that the drawn token will have.

    Returns:
        int64 [B].

    Raises:
        KernelInputError: shapes or dtypes do not fit. Values are the caller's to check: this reads nothing back.
    """
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise KernelInputError(f"logits have shape {tuple(logits.shape)}; they must be [B, V] with V > 0")
    for name, value in (("temperature", temperature), ("top_k", top_k), ("top_p", top_p), ("min_p", min_p),
                        ("seeds", seeds), ("positions", positions)):  # fmt: skip
        if value is not None and value.shape != logits.shape[:1]:
            raise KernelInputError(f"{name} has shape {tuple(value.shape)}; it must be [{logits.shape[0]}]")
    require_floats(logits=logits, temperature=temperature, top_p=top_p, min_p=min_p)
    require_dtype(torch.int64, top_k=top_k, seeds=seeds, positions=positions)
    cuts = None
    if not (top_k is top_p is min_p is None):
        cuts = Cuts(
            torch.zeros_like(seeds) if top_k is None else top_k,
            torch.ones_like(temperature) if top_p is None else top_p,
            torch.zeros_like(temperature) if min_p is None else min_p,
        )
    if uses_triton_kernel(impl, logits):
        return _triton()(logits, temperature, cuts, seeds, positions)
    if uses_cpu_kernel(impl, logits):
        return _cpu()(logits, temperature, cuts, seeds, positions)
    return sample_ref(logits, temperature, cuts, seeds, positions)


@cache
def _triton() -> Callable[..., Tensor]:
    from benthic.kernels.sample.kernel import sample_triton

    return sample_triton


@cache
def _cpu() -> Callable[..., Tensor]:
    from benthic.kernels.sample.cpu import sample_cpu

    return sample_cpu
