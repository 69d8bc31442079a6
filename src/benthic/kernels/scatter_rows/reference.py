"""The meaning of a scatter that leaves rows out."""

from torch import Tensor


def scatter_rows_ref(target: Tensor, slots: Tensor, rows: Tensor) -> None:
    """See `scatter_rows`. The host reads how many rows stay."""
    kept = (slots >= 0).nonzero()[:, 0]
    target.index_copy_(0, slots[kept], rows[kept])
