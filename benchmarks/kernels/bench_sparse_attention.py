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
from benthic.kernels.sparse_attention.cases import (
    WINDOW,
    Pass,
    inputs,
    latent_inputs,
    make_latent_pass,
    make_pass,
    random_picks,
)

Case = tuple[str, Callable[..., Any], int, int]
HEADS, DIM, TOP_K = 8, 64, 64
LATENT = ((8, 80, 64, 512), (8, 80, 64, 8192), (16, 576, 512, 4096), (128, 576, 512, 4096))
"""(heads, width of keys, of values, context): a small model near and far from the start, V2-Lite, V3."""


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
    yield from latent_cases(rows, device)


def latent_cases(rows: int, device: torch.device) -> Iterator[Case]:
    """Attention over the latents of all tokens, and over 2048 picked ones."""
    for heads, dim, value_dim, context in LATENT:
        longest = max(context, rows)
        where = make_latent_pass([(0, longest - rows, rows)], longest=longest, page=128)
        given = on_device(latent_inputs(where, heads=heads, dim=dim, value_dim=value_dim), device)
        given["plan"] = _placed(where, device)
        moved = 4 * (rows * heads * (dim + value_dim) + longest * dim)
        flops = 2 * rows * heads * (dim + value_dim)
        yield f"latent {heads}x{dim} {context}", partial(sparse_attention, **given), moved, flops * longest
        if longest > 4096:
            picks = [one.to(device) for one in random_picks(where, 2048) if one is not None]
            yield f"picks {heads}x{dim} {context}", partial(sparse_attention, **given, picks=picks), moved, flops * 1024


def _placed(where: Pass, device: torch.device) -> Any:
    """The plan with its tables on the device."""
    tables = where.tables.map(lambda table: table.to(device))
    plans = plan_tiles(
        where.runs,
        tables,
        [where.ratio],
        window=where.window,
        num_rows=where.num_rows,
        device=device,
        tiles_per_group=4,
    )
    return plans[where.ratio]


if __name__ == "__main__":
    main("sparse_attention", cases)
