"""Passes for tests and benches: rows that decode and verify, dummies, every kind of layer."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from benthic.kernels.pass_plan.layout import REAL, RELAYED, Column, PlanShape, RatioShape

V4 = PlanShape(128, True, 4, (RatioShape(4, 4, 12, 1), RatioShape(128, 0, 256, 1)), 2, 32)
LATENT = PlanShape(128, False, 0, (RatioShape(1, 0, 0, 0),), 1, 3, 1.25)


class PlanCase(NamedTuple):
    """Arguments of `plan_rows`."""

    shape: PlanShape
    given: Tensor
    newest: Tensor
    windows: Tensor
    pages: Tensor
    frequencies: Tensor


def plan_cases(device: torch.device | str = "cpu", num_pages: int = 20) -> Iterator[PlanCase]:
    """Of both kinds of model, of 1 to 133 rows."""
    for shape in (V4, LATENT):
        for num_rows, seed in ((1, 0), (7, 1), (64, 2), (133, 3)):
            make = torch.Generator().manual_seed(seed)
            tables = [torch.randint(0, 50, (8, num_pages), generator=make) for _ in range(2)]
            newest = torch.randint(0, 100, (8,), generator=make)
            base = 10000.0 ** (-torch.arange(shape.num_pairs) / shape.num_pairs)
            frequencies = torch.stack([base / (1 + table) for table in range(shape.num_tables)])
            given = _rows(num_rows, num_pages * shape.page_size, make)
            moved = [tensor.to(device) for tensor in (given, newest, *tables, frequencies)]
            yield PlanCase(shape, *moved)


def settle_cases(device: torch.device | str = "cpu") -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(given, drawn, is_finite): runs of up to five rows of which some drafts are right."""
    for seed in range(6):
        make = torch.Generator().manual_seed(seed)
        rows = []
        for sequence, length in enumerate(torch.randint(1, 6, (9,), generator=make).tolist()):
            drafts = torch.randint(0, 2, (length,), generator=make).tolist()
            drafts[-1] = -1
            for place, draft in enumerate(drafts):
                rows.append([0, place, sequence, REAL, place, draft, *[0] * 5, sequence, 9])
        given = torch.tensor([*rows, [0, 0, 0, 0, 0, -1, *[0] * 6, 9]])
        drawn = torch.randint(0, 2, (len(given),), generator=make)
        is_finite = torch.rand(len(given), generator=make) < 0.9
        yield given.to(device), drawn.to(device), is_finite.to(device)


def _rows(num_rows: int, max_len: int, make: torch.Generator) -> Tensor:
    given = torch.zeros(num_rows, len(Column), dtype=torch.int64)
    given[:, Column.TOKEN] = torch.randint(0, 100, (num_rows,), generator=make)
    positions = torch.randint(0, max_len, (num_rows,), generator=make)
    # Half of them at the end of a block.
    given[:, Column.POSITION] = torch.where(positions % 2 > 0, positions // 128 * 128 + 127, positions)
    given[:, Column.REQUEST_ROW] = torch.randint(0, 8, (num_rows,), generator=make)
    given[:, Column.FLAGS] = torch.tensor([0, REAL, REAL, REAL | RELAYED])[torch.arange(num_rows) % 4]
    given[:, Column.SEED], given[:, Column.TOP_K] = positions + 1, positions % 50
    values = torch.rand(num_rows, 3, generator=make, dtype=torch.float64)
    given[:, Column.TEMPERATURE : Column.MIN_P + 1] = values.view(torch.int64)
    return given
