"""Price of the indexer: scores, and scores with the choice by them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from timing import main

from benthic.kernels.index_scores import index_scores, pick_entries
from benthic.kernels.sparse_attention.cases import index_inputs, make_latent_pass, make_pass

Case = tuple[str, Callable[..., Any], int, int]
HEADS, DIM, TOP_K = 16, 32, 64


def cases(rows: int, device: torch.device) -> Iterator[Case]:
    """(name, call, bytes, operations) at sizes of the bundled model, pages of 128; rows end at the context."""
    assert device.type == "cpu", "the tables of these cases lie on the host"
    for context in (4096, 65536):
        where = make_pass(4, [(0, max(context - rows, 0), rows)], longest=max(context, rows), page=128)
        given = index_inputs(where, heads=HEADS, dim=DIM)
        moved, work = context // 4 * 4 * (DIM + rows), 2 * rows * HEADS * DIM * context // 4
        yield f"scores at {context}", partial(_all_groups, index_scores, where.plan.groups, given), moved, work
        choose = partial(pick_entries, k=TOP_K)
        yield f"picks at {context}", partial(_all_groups, choose, where.plan.groups, given), moved, work
    context = max(16384, rows)
    where = make_latent_pass([(0, context - rows, rows)], longest=context, page=128)
    given = index_inputs(where, heads=HEADS, dim=DIM)
    choose = partial(_all_groups, partial(pick_entries, k=2048), where.plan.groups, given)
    yield f"picks of tokens {context}", choose, context * 4 * (DIM + rows), 2 * rows * HEADS * DIM * context


def _all_groups(op: Callable[..., Any], groups: Any, given: dict[str, Any], impl: str) -> None:
    for tiles in groups:
        op(**given, tiles=tiles, impl=impl)


if __name__ == "__main__":
    main("index_scores", cases)
