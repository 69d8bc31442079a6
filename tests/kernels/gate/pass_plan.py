"""Production shapes of a pass's plan: 256 rows of Flash, and rows scattered to the slots of every pool."""

from collections.abc import Callable, Iterator

import torch

from benthic.kernels.pass_plan.cases import V4
from benthic.kernels.pass_plan.kernel import plan_rows_triton, settle_rows_triton
from benthic.kernels.pass_plan.layout import Column, PlanBuffers
from benthic.kernels.scatter_rows.kernel import scatter_rows_triton

ROWS, ON = 256, torch.device("meta")


def production() -> Iterator[tuple[str, Callable[[], object]]]:
    """(case, launch)."""
    yield "plan", _plan
    yield "settle", _settle
    for width, dtype in ((512, torch.bfloat16), (584, torch.uint8), (2304, torch.float32)):
        yield f"scatter {width}", lambda width=width, dtype=dtype: _scatter(width, dtype)


def _words(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int64, device=ON)


def _plan() -> None:
    tables = _words(256, 8192)
    frequencies = torch.empty(V4.num_tables, V4.num_pairs, device=ON)
    plan_rows_triton(_words(ROWS, len(Column)), _words(256), tables, tables, frequencies, PlanBuffers(V4, ROWS, ON))


def _settle() -> None:
    finite = torch.empty(ROWS, dtype=torch.bool, device=ON)
    settle_rows_triton(_words(ROWS, len(Column)), _words(ROWS), finite, _words(256), _words(ROWS), _words(ROWS, 2))


def _scatter(width: int, dtype: torch.dtype) -> None:
    rows = torch.empty(ROWS, width, dtype=dtype, device=ON)
    scatter_rows_triton(torch.empty(1 << 16, width, dtype=dtype, device=ON), _words(ROWS), rows)
