"""Production shapes of routing by Triton: Flash's gates by score, bias and table, and V3's groups."""

from collections.abc import Callable, Iterator

import torch

from benthic.kernels.moe_route.kernel import route_rows_triton
from benthic.kernels.moe_route.reference import GroupLimit
from benthic.kernels.moe_route.rows import ExpertRows


def production() -> Iterator[tuple[str, Callable[[], object]]]:
    """(case, launch)."""
    yield "route 256 of Flash", lambda: _route(256, 6)
    yield "route 384 of Pro", lambda: _route(384, 6, rows=8192)
    yield "route 256 of Flash alone", lambda: _route(256, 6, rows=1)
    yield "route by table", lambda: _route(256, 6, hashed=True)
    yield "route V3", lambda: _route(256, 8, limit=GroupLimit(8, 4, 2))


def _route(
    num_experts: int, top_k: int, *, rows: int = 128, hashed: bool = False, limit: GroupLimit | None = None
) -> ExpertRows:
    on = torch.device("meta")
    table = torch.empty(129280, top_k, dtype=torch.int64, device=on) if hashed else None
    ids = torch.empty(rows, dtype=torch.int64, device=on) if hashed else None
    return route_rows_triton(
        torch.empty(rows, num_experts, device=on), torch.empty(num_experts, device=on), None, table, ids,
        torch.empty(1, dtype=torch.int32, device=on), top_k, 1.5, "sigmoid" if limit else "sqrtsoftplus", True, 1e-20,
        limit,
    )  # fmt: skip
