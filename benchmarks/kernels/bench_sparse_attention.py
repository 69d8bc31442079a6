"""Price of attention: one row (decode) and runs (prefill), near the start and far behind it.

    python benchmarks/kernels/bench_sparse_attention.py --rows 1 9 64 512

`--rows` is the length of one run that ends at the context named in the case.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from timing import main, on_device

from benthic.kernels.sparse_attention import plan_tiles, sparse_attention
from benthic.kernels.sparse_attention.cases import WINDOW, Pass, inputs, make_pass, random_picks

Case = tuple[str, Callable[..., Any], int, int]
HEADS, DIM, TOP_K = 8, 64, 64


def cases(rows: int, device: torch.device) -> Iterator[Case]:
    """(name, call, bytes, operations) at sizes of the bundled model, pages of 128."""
    for ratio, context in ((0, 4096), (4, 4096), (4, 65536), (128, 65536)):
        where = make_pass(ratio, [(0, max(context - rows, 0), rows)], longest=max(context, rows), page=128)
        given = on_device(inputs(where, heads=HEADS, dim=DIM), device)
        picks = random_picks(where, TOP_K) if ratio == 4 else None
        given["plan"], num_keys = _placed(where, device), WINDOW + (TOP_K if ratio == 4 else context // max(ratio, 1))
        num_keys = WINDOW if ratio == 0 else num_keys
        chosen = None if picks is None else [one.to(device) for one in picks if one is not None]
        call = partial(sparse_attention, **given, picks=chosen)
        moved = 4 * DIM * (2 * rows * HEADS + num_keys * (1 if rows < num_keys else rows // num_keys + 1))
        yield f"ratio {ratio} at {context}", call, moved, 4 * rows * HEADS * DIM * num_keys


def _placed(where: Pass, device: torch.device) -> Any:
    """The plan with its tables on the device."""
    tables = where.tables.map(lambda table: table.to(device))
    plans = plan_tiles(
        where.runs, tables, [where.ratio], window=WINDOW, num_rows=where.num_rows, device=device, tiles_per_group=4
    )
    return plans[where.ratio]


if __name__ == "__main__":
    main("sparse_attention", cases)
