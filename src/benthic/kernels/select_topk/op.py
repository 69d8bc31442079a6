"""The door of top-k selection."""

from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.select_topk.reference import select_topk_ref


def select_topk(scores: Tensor, k: int) -> Tensor:
    """Marks the k best entries of every row; ties go to the lower index (model.md 2.6 step 6).

    Args:
        scores: [..., N]; -inf marks entries that are not visible. Where fewer than k are visible, some invisible
            ones are marked too: the caller's visibility mask still holds.
        k: how many to keep, at least 1.

    Returns:
        bool [..., N]. The set depends on a row's visible scores only, not on N.
    """
    if k < 1:
        raise KernelInputError(f"k ({k}) must be at least 1")
    return select_topk_ref(scores, k)
