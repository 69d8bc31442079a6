"""How many rows the batched products of attention need, so that a row's bits ignore how many stand beside it.

Attention multiplies [M, d] queries with keys and [M, 64] weights with values, M = rows of a tile times heads. Below
some M a library takes other kernels, which add in another order; few heads are then filled up to it.
"""

from functools import cache

import torch

from benthic.errors import ExactnessError

CANDIDATES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
KEY_BLOCK = 64
NUM_KEYS = (3 * KEY_BLOCK, 4 * KEY_BLOCK, 7 * KEY_BLOCK, 16 * KEY_BLOCK)
LARGER = (48, 64, 65, 100, 128, 200)
MOST_ROWS = 256


@cache
def fewest_product_rows(dim: int, threads: int, value_dim: int | None = None) -> int:
    """The smallest M from which on rows of queries . keys^T and weights . values have the same bits, by trial.

    Args:
        dim: width of queries and keys.
        threads: torch's thread count, which keys the answer.
        value_dim: width of the values, the first numbers of the keys; None for all of them.

    Raises:
        ExactnessError: none up to 64.
    """
    for rows in CANDIDATES:
        if all(_agrees(rows, dim, num_keys, value_dim) for num_keys in NUM_KEYS):
            return rows
    raise ExactnessError(
        f"attention products of width {dim} depend on the number of rows up to {CANDIDATES[-1]} "
        f"with {threads} threads; "
        "use one thread, or on Intel set MKL_CBWR=AUTO,STRICT in the environment"
    )


def _agrees(fewest: int, dim: int, num_keys: int, value_dim: int | None) -> bool:
    generator = torch.Generator().manual_seed(dim)
    queries = torch.randn(2, MOST_ROWS, dim, generator=generator)
    keys = torch.randn(2, num_keys, dim, generator=generator)
    weights, values = torch.rand(2, MOST_ROWS, KEY_BLOCK, generator=generator), keys[:, :KEY_BLOCK, :value_dim]
    scores, sums = torch.bmm(queries, keys.transpose(1, 2)), torch.bmm(weights, values)
    return all(
        torch.equal(torch.bmm(queries[:, :rows].contiguous(), keys.transpose(1, 2)), scores[:, :rows])
        and torch.equal(torch.bmm(weights[:, :rows].contiguous(), values), sums[:, :rows])
        for rows in (*range(fewest, 34), *LARGER)
        if rows >= fewest
    )
