"""The door of route_rows: routing as serving needs it."""

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, uses_triton_kernel
from benthic.kernels.inputs import require_below
from benthic.kernels.moe_route.op import check_route, moe_route
from benthic.kernels.moe_route.reference import GroupLimit, Score
from benthic.kernels.moe_route.rows import ExpertRows, expert_rows_ref


@torch.no_grad()
def route_rows(
    logits: Tensor,
    *,
    top_k: int,
    scale: float,
    score: Score = "sqrtsoftplus",
    bias: Tensor | None = None,
    experts: Tensor | None = None,
    table: Tensor | None = None,
    token_ids: Tensor | None = None,
    normalize: bool = True,
    floor: float = 0.0,
    limit: GroupLimit | None = None,
    num_rows: Tensor | None = None,
    impl: Impl = "auto",
) -> ExpertRows:
    """`moe_route`, and for every expert the rows that chose it; on CUDA without a word to the host.

    A row alone takes one launch, more rows take two.

    Args:
        logits: float32 [R, E].
        top_k, scale, score, bias, normalize, floor, limit: as for `moe_route`.
        experts: int64 [R, K] or None; given for replay, then nothing is selected.
        table: int64 [V, K] or None; for hash routing the experts of each token id, with `token_ids` int64 [R].
        num_rows: int [1] or None, on the device of the logits: only so many rows are live, the others go nowhere.

    Returns:
        An ExpertRows; experts and weights of live rows are those of `moe_route`, to the bit. It carries no gradient.

    Raises:
        KernelInputError: shapes, dtype, K or groups do not fit.
    """
    if (table is None) != (token_ids is None) or (table is not None and experts is not None):
        raise KernelInputError("hash routing takes a table and token ids; replay takes experts alone")
    _check_table(table, token_ids, len(logits), top_k)
    if uses_triton_kernel(impl, logits):
        from benthic.kernels.moe_route.kernel import route_rows_triton

        check_route(logits, top_k, bias, experts, limit)
        return route_rows_triton(
            logits, bias, experts, table, token_ids, num_rows, top_k, scale, score, normalize, floor, limit
        )
    if table is not None and token_ids is not None:
        experts = table.index_select(0, token_ids)
    routing = moe_route(
        logits, top_k=top_k, scale=scale, score=score, bias=bias, experts=experts, normalize=normalize, floor=floor,
        limit=limit, impl=impl,
    )  # fmt: skip
    return expert_rows_ref(routing, logits.shape[1], num_rows)


def _check_table(table: Tensor | None, token_ids: Tensor | None, rows: int, top_k: int) -> None:
    if table is None or token_ids is None:
        return
    if table.dim() != 2 or table.shape[1] != top_k or token_ids.shape != (rows,):
        raise KernelInputError(
            f"table has shape {tuple(table.shape)}, token_ids {tuple(token_ids.shape)}; "
            f"they must be [V, {top_k}] and [{rows}]"
        )
    require_below("token_ids", token_ids, len(table))
