"""The doors of pass_plan: the plan of a pass before its layers, and what became of its drafts after them."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, uses_triton_kernel
from benthic.kernels.pass_plan.layout import Column, PlanBuffers
from benthic.kernels.pass_plan.reference import plan_rows_ref, settle_rows_ref


def plan_rows(
    given: Tensor,
    newest: Tensor,
    windows: Tensor,
    pages: Tensor,
    frequencies: Tensor,
    out: PlanBuffers,
    *,
    impl: Impl = "auto",
) -> None:
    """Writes the plan of R rows into `out.head(R)`; nothing is read by the host, and one launch does it on CUDA.

    Args:
        given: int64 [R, len(Column)], contiguous. A dummy may carry any row that exists: it writes nowhere.
        newest: int64 [request rows]: the newest token of each, for rows that are RELAYED.
        windows, pages: int64 [request rows, pages]: the page tables, contiguous; id 0 belongs to nobody.
        frequencies: float32 [tables, pairs].

    Raises:
        KernelInputError: shapes do not fit.
    """
    num_rows = len(given)
    if given.shape != (num_rows, len(Column)) or given.dtype != torch.int64 or num_rows > out.capacity:
        raise KernelInputError(
            f"rows are {given.dtype} {tuple(given.shape)}; they must be int64 [R, {len(Column)}], R <= {out.capacity}"
        )
    if frequencies.shape != (out.shape.num_tables, out.shape.num_pairs):
        raise KernelInputError(
            f"frequencies have shape {tuple(frequencies.shape)}; they must be "
            f"({out.shape.num_tables}, {out.shape.num_pairs})"
        )
    if num_rows == 0:
        return
    plan = _triton()[0] if uses_triton_kernel(impl, given) else plan_rows_ref
    plan(given, newest, windows, pages, frequencies, out)


def settle_rows(
    given: Tensor, drawn: Tensor, is_finite: Tensor, newest: Tensor, ends: Tensor, out: Tensor, *, impl: Impl = "auto"
) -> None:
    """Finds each sequence's run of right drafts and keeps its last token that counts; see `engine.speculate`.

    Args:
        given: as in `plan_rows`.
        drawn: int64 [R], the token drawn from each row.
        is_finite: bool [R]: whether its logits were numbers.
        newest: int64 [request rows], written where a row is a sequence's last that counts.
        ends: int64 [sequences], written: the row of each sequence's last token that counts.
        out: int64 [R, 2], written: the tokens, and 1 where the logits were numbers. What goes to the host.
    """
    if drawn.shape != given.shape[:1] or out.shape != (len(given), 2):
        raise KernelInputError(
            f"drawn has shape {tuple(drawn.shape)} and out {tuple(out.shape)}; they must be [R] and [R, 2]"
        )
    if len(given) == 0:
        return
    settle = _triton()[1] if uses_triton_kernel(impl, given) else settle_rows_ref
    settle(given, drawn, is_finite, newest, ends, out)


@cache
def _triton() -> tuple[Callable[..., None], Callable[..., None]]:
    from benthic.kernels.pass_plan.kernel import plan_rows_triton, settle_rows_triton

    return plan_rows_triton, settle_rows_triton
