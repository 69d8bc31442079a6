"""The door of moe_experts."""

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, require_reference, uses_cuda_kernel, uses_triton_kernel
from benthic.kernels.inputs import require_dtype, require_floats
from benthic.kernels.moe_experts.picked import MOST_PICKS, PickedRows
from benthic.kernels.moe_experts.reference import Experts, routed_experts_ref
from benthic.kernels.moe_experts.weights import RUN, Fp4Experts
from benthic.kernels.moe_route import ExpertRows
from benthic.kernels.quantize import QuantizedRows

OUT_DTYPES = (torch.float32, torch.bfloat16)
FEW_ROWS = 128
"""Up to so many rows, whoever reads picked outputs next may add them up; more would make it wait for them too often."""


def routed_experts(
    x: QuantizedRows,
    routing: ExpertRows,
    w13: Experts,
    w2: Experts,
    limit: float | None,
    shared: Tensor | None = None,
    out_dtype: torch.dtype = torch.float32,
    *,
    impl: Impl = "auto",
) -> Tensor:
    """The weighted sum over each row's experts: gather, w13, clamped SwiGLU, FP8 rounding, w2, ordered sum.

    Args:
        x: FP8 rows [R, D] with a scale for each 128 values.
        routing: which experts rows go to, and with what weight (applied before the rounding between the products).
        w13: [E, 2F, D], gate rows, then up rows.
        w2: [E, D, F].
        limit: the clamp of `swiglu`; None: no clamp.
        shared: [R, D] or None, added to the sum before it is rounded (the shared experts' output).
        out_dtype: float32 or bfloat16.

    Returns:
        [R, D]. Rows that are not live have their shared output only.

    Raises:
        KernelInputError: shapes do not fit.

    On CUDA FP4 experts in a streamed form, hence D and F multiples of 256, take the CUDA C++ kernels on a Hopper GPU
    where nvcc is. All other matrices take slower Triton kernels, whose bits differ. Neither lets the host read
    anything, so both can be captured in a CUDA graph. The reference runs elsewhere.

    Source: model.md 2.8. The same row has the same bits in any batch: every sum runs in one order, settled by shapes.
    """
    _check(x, routing, w13, w2, shared, out_dtype)
    limit = math.inf if limit is None else limit
    if not x.data.shape[0]:
        return torch.zeros(x.data.shape, dtype=out_dtype, device=x.data.device)
    if _takes_cuda(impl, x, w13, w2):
        return _cuda()(x, routing, w13, w2, limit, shared, out_dtype)
    if impl != "cuda" and uses_triton_kernel(impl, x.data):
        return _triton()(x, routing, w13, w2, limit, shared, out_dtype)
    if impl != "cuda":
        require_reference(impl, "routed_experts")
    return routed_experts_ref(x, routing, w13, w2, limit, shared, out_dtype)


def picked_experts(
    x: QuantizedRows,
    routing: ExpertRows,
    w13: Experts,
    w2: Experts,
    limit: float | None,
    shared: Tensor,
    alone: Tensor | None = None,
) -> PickedRows | Tensor:
    """`routed_experts` in the dtype of `shared`, for a reader that takes PickedRows too: of few rows, in CUDA C++.

    Args:
        alone: uint8 [8 (D + D / 32)] or None: of one row, `x` in blocked form (experts.cu), so that nothing gathers it.
    """
    rows, top_k = routing.experts.shape
    leaves = 0 < rows <= FEW_ROWS and top_k <= MOST_PICKS and shared.dtype is torch.bfloat16
    if not leaves or not _takes_cuda("auto", x, w13, w2):
        return routed_experts(x, routing, w13, w2, limit, shared, out_dtype=shared.dtype)
    _check(x, routing, w13, w2, shared, shared.dtype)
    limit = math.inf if limit is None else limit
    outputs = _picked()(x, routing, w13, w2, limit, alone=alone if rows == 1 else None)
    return PickedRows(outputs, routing.slots, shared.contiguous())


def _takes_cuda(impl: Impl, x: QuantizedRows, w13: Experts, w2: Experts) -> bool:
    streamed = all(isinstance(one, Fp4Experts) and one.form != "plain" for one in (w13, w2))
    if impl == "cuda" and not streamed:
        raise KernelInputError("impl='cuda' takes FP4 experts in a streamed form only; use 'auto' or 'reference'")
    return streamed and uses_cuda_kernel(impl, x.data)


@cache
def _cuda() -> Callable[..., Tensor]:
    from benthic.kernels.moe_experts.cuda import routed_experts_cuda

    return routed_experts_cuda


@cache
def _picked() -> Callable[..., Tensor]:
    from benthic.kernels.moe_experts.cuda import picked_outputs

    return picked_outputs


@cache
def _triton() -> Callable[..., Tensor]:
    from benthic.kernels.moe_experts.kernel import routed_experts_triton

    return routed_experts_triton


def _check(
    x: QuantizedRows, routing: ExpertRows, w13: Experts, w2: Experts, shared: Tensor | None, out_dtype: torch.dtype
) -> None:
    if not isinstance(x, QuantizedRows):
        raise KernelInputError(f"x is a {type(x).__name__}; it must be QuantizedRows, which quantize_rows makes")
    require_dtype(torch.float8_e4m3fn, x=x.data)
    require_floats(shared=shared)
    for name, held in (("w13", w13), ("w2", w2)):
        if isinstance(held, Fp4Experts) and held.kind != name:
            raise KernelInputError(f"{name} was packed as {held.kind!r}; it must be packed as {name!r}")
    rows, size = x.data.shape
    experts, width = w13.shape[0], w13.shape[1] // 2
    if w13.shape != (experts, 2 * width, size) or w2.shape != (experts, size, width):
        raise KernelInputError(
            f"x has shape {(rows, size)}, w13 {w13.shape}, w2 {w2.shape}; they must be [R, D], [E, 2F, D], [E, D, F]"
        )
    if x.scale.shape != (rows, -(-size // RUN)):
        raise KernelInputError(
            f"the scales of x have shape {tuple(x.scale.shape)}; they must be {(rows, -(-size // RUN))}"
        )
    picks = routing.experts.shape
    if picks[0] != rows or routing.counts.shape != (experts,):
        raise KernelInputError(
            f"routing has experts {tuple(routing.experts.shape)} and counts {tuple(routing.counts.shape)}; "
            f"they must be [{rows}, K] and [{experts}]"
        )
    if routing.weights.shape != picks or routing.order.shape != (picks.numel(),):
        raise KernelInputError(
            f"routing has weights {tuple(routing.weights.shape)} and order {tuple(routing.order.shape)}; "
            f"they must be {tuple(picks)} and [{picks.numel()}]"
        )
    if shared is not None and shared.shape != (rows, size):
        raise KernelInputError(f"shared has shape {tuple(shared.shape)}; it must be {(rows, size)}")
    if out_dtype not in OUT_DTYPES:
        raise KernelInputError(f"out_dtype is {out_dtype}; it must be float32 or bfloat16")
