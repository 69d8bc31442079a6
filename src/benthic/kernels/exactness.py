"""How many rows a product must have on this machine so that a row's bits ignore its neighbours.

A library picks its product kernel by the number of rows, and kernels add in different orders. `linear` and its
kin meet that by layout, by an own kernel for one row, and by padding; whether it suffices depends on the processor,
the library and the thread count, so it is found by trial at start-up. The order of a product does not depend on
data, so random data settle it.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from benthic.errors import ExactnessError
from benthic.kernels.grouped_linear import grouped_linear
from benthic.kernels.linear import batched_linear, by_columns, linear

CANDIDATES = (1, 2, 4, 8, 16, 32, 64)
# Work above which the shapes of a model are sampled, in multiply-adds for one row: 24 M is a model of 24 M parameters.
FULL_CHECK_SIZE = 24_000_000
SAMPLED_OUT = 1024


def establish_min_rows(shapes: Iterable[tuple[int, int]], threads: int) -> int:
    """The smallest P such that rows of products with at least P rows have the same bits in any product.

    Args:
        shapes: (O, I) of every weight that rows are multiplied with. Those of a large model are sampled: one for each
            I, with at most 1024 outputs.
        threads: the threads of torch's products for which the answer shall hold.

    Returns:
        One of 1, 2, 4, 8, 16, 32, 64; 1 means that passes need no dummy rows.

    Raises:
        ExactnessError: torch runs with another thread count, or no P holds.
    """
    if torch.get_num_threads() != threads:
        raise ExactnessError(
            f"exactness was asked for {threads} threads and torch runs {torch.get_num_threads()}; "
            "call torch.set_num_threads first: the bits of small products depend on it"
        )
    checked = _sample(sorted(set(shapes)))
    failure = ""
    for rows in CANDIDATES:
        failure = next((bad for shape in checked if (bad := _first_difference(shape, rows))), "")
        if not failure:
            return rows
    raise ExactnessError(
        f"products depend on the number of rows up to {CANDIDATES[-1]}: {failure}, {threads} threads; "
        "use one thread, or on Intel set MKL_CBWR=AUTO,STRICT in the environment"
    )


def _sample(shapes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    if sum(rows * columns for rows, columns in shapes) <= FULL_CHECK_SIZE:
        return shapes
    return sorted({(min(rows, SAMPLED_OUT), columns) for rows, columns in {i: (o, i) for o, i in shapes}.values()})


def _first_difference(shape: tuple[int, int], min_rows: int) -> str:
    """Names the first product whose rows differ from those of the largest one; empty if none does."""
    outputs, inputs = shape
    generator = torch.Generator().manual_seed(outputs * 7919 + inputs)
    most = 8 * min_rows + 40
    x = torch.randn(most, inputs, generator=generator)
    weight = torch.randn(outputs, inputs, generator=generator)
    for name, product in _products(weight).items():
        whole = product(x)
        for start, rows in _extents(min_rows, most):
            part = x[start : start + rows]
            if not torch.equal(product(part), whole[start : start + rows]):
                return f"{name} of {rows} rows with a [{outputs}, {inputs}] weight differs from {most} rows"
    return ""


def _products(weight: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """The forms in which rows meet a weight: as it trains and as it serves, also from a wider buffer."""
    serving = by_columns(weight)
    group, pair = by_columns(weight[None]), by_columns(torch.stack((weight, weight)))
    return {
        "linear": lambda x: linear(x, weight),
        "linear by columns": lambda x: linear(x, serving),
        "linear from a wider buffer": lambda x: linear(F.pad(x, (3, 5))[:, 3:-5], serving),
        "grouped": lambda x: grouped_linear(x, group, torch.tensor([len(x)], dtype=torch.int32)),
        "batched": lambda x: batched_linear(torch.stack((x, x), dim=1), pair)[:, 1],
    }


def _extents(min_rows: int, most: int) -> Iterator[tuple[int, int]]:
    """(start, rows): every number of rows from P to 4P, at a moving offset, and larger ones."""
    for rows in (*range(min_rows, 4 * min_rows + 1), *range(4 * min_rows + 3, most, 7)):
        yield (rows * 5) % (most - rows + 1), rows
