"""One training document: its token ids, and how much the prediction of each counts in the loss."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benthic.errors import DataError

Ids = NDArray[np.int32]
Weights = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """A document that is trained on as a whole and sees no other.

    `token_ids` is int32 [n]; `weights` is float32 [n], the weight of the loss of predicting that token from the ones
    before it, so `weights[0]` has no effect: nothing precedes the first token. Sequences are converted. `tag` names
    the kind of document in evaluations.

    Raises DataError for lengths that differ, fewer than two tokens, a negative id, or a weight that is negative, not
    finite, or zero everywhere it could count.
    """

    token_ids: Ids
    weights: Weights
    tag: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", np.ascontiguousarray(self.token_ids, dtype=np.int32))
        object.__setattr__(self, "weights", np.ascontiguousarray(self.weights, dtype=np.float32))
        _check(self)

    def __len__(self) -> int:
        return len(self.token_ids)


def split_item(item: Item, max_len: int) -> list[Item]:
    """Cuts a document into pieces of at most `max_len` tokens, each a document of its own.

    Every token is kept once, but the first token of a piece is no longer predicted, and a piece whose remaining
    weights are all zero is left out. A last piece of one token joins the piece before by shortening that one.
    """
    if max_len < 2:
        raise DataError(
            f"max_len ({max_len}) must be at least 2: a document needs a token to predict and one before it"
        )
    pieces = []
    for start, end in _cuts(len(item), max_len):
        ids, weights = item.token_ids[start:end], item.weights[start:end]
        if weights[1:].any():
            pieces.append(Item(ids, weights, item.tag))
    return pieces


def _cuts(length: int, max_len: int) -> Sequence[tuple[int, int]]:
    edges = [*range(0, length, max_len), length]
    if len(edges) > 2 and edges[-1] - edges[-2] == 1 and max_len > 2:
        edges[-2] -= 1
    return list(zip(edges[:-1], edges[1:], strict=True))


def _check(item: Item) -> None:
    ids, weights = item.token_ids, item.weights
    if ids.ndim != 1 or ids.shape != weights.shape:
        raise DataError(f"token_ids {ids.shape} and weights {weights.shape} must be one-dimensional and equally long")
    if len(ids) < 2:
        raise DataError(f"a document of {len(ids)} tokens has nothing to predict; at least 2 are needed")
    if int(ids.min()) < 0:
        raise DataError(f"token id {int(ids.min())} at {int(ids.argmin())} is negative; ids start at 0")
    if not np.isfinite(weights).all() or float(weights.min()) < 0:
        at = int(np.argmax(~np.isfinite(weights) | (weights < 0)))
        raise DataError(f"weight {float(weights[at])} at {at} must be finite and not negative")
    if not weights[1:].any():
        raise DataError(f"all weights of a document of {len(ids)} tokens are zero; leave such documents out")
