"""Verification of drafts: which of them the model would have chosen itself.

Row i of a chunk of 1 + k rows holds the token after i drafts, and one token is drawn from each row with the random
number of its own position. As long as the draft that stood in the next row is the token drawn, that row was computed
after the right prefix, so its own token counts too. The first wrong draft ends the run: the token drawn in its stead
is the last one that counts. Without drafts that is the one token of a plain step.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Token = TypeVar("Token")

NO_TOKEN = -1
"""Equals no token, so a place that holds it ends every run."""


class VerifyLayout(NamedTuple):
    """Where the drawn tokens of S sequences stand among the N rows that were sampled.

    `places` int64 [S, K + 1]: of the rows of each sequence, the last one repeated where it has fewer than K + 1.
    `drafts` int64 [S, K]: the drafts in order, NO_TOKEN behind them. K is the largest number of drafts.
    """

    places: NDArray[np.int64]
    drafts: NDArray[np.int64]


class Verified(NamedTuple):
    """`num_accepted` int64 [S]: drafts that were right. `newest` int64 [S]: the last token that counts.
    `last_places` int64 [S]: the sampled row that it was drawn from."""

    num_accepted: Tensor
    newest: Tensor
    last_places: Tensor


def verify_layout(drafts: Seq[tuple[int, ...]]) -> VerifyLayout:
    """Lays out the rows of sequences with these drafts, one sequence after the other."""
    counts = np.fromiter((len(own) for own in drafts), np.int64, len(drafts))
    width = int(counts.max(initial=0))
    first = np.cumsum(counts + 1) - counts - 1
    places = first[:, None] + np.minimum(np.arange(width + 1), counts[:, None])
    padded = np.full((len(drafts), width), NO_TOKEN, dtype=np.int64)
    if width:
        padded[np.arange(width) < counts[:, None]] = np.concatenate([np.array(own, np.int64) for own in drafts])
    return VerifyLayout(places, padded)


def verify(drawn: Tensor, places: Tensor, drafts: Tensor) -> Verified:
    """Finds each sequence's run of right drafts; no step waits for the device.

    Args:
        drawn: int64 [N], the token drawn from each sampled row.
        places, drafts: see `VerifyLayout`, on the device of `drawn`.
    """
    own = drawn[places]  # [S, K + 1]
    num_accepted = (own[:, :-1] == drafts).to(torch.int64).cumprod(1).sum(1)
    where = num_accepted[:, None]
    return Verified(num_accepted, own.gather(1, where)[:, 0], places.gather(1, where)[:, 0])


def count_accepted(drawn: Seq[int], drafts: Seq[tuple[int, ...]]) -> list[int]:
    """`Verified.num_accepted` on the host: right drafts of each sequence, whose rows follow one another."""
    counts, first = [], 0
    for own in drafts:
        count = 0
        while count < len(own) and drawn[first + count] == own[count]:
            count += 1
        counts.append(count)
        first += len(own) + 1
    return counts


def tokens_that_count(
    drawn: Seq[Token], num_drafts: Iterable[int], num_accepted: Iterable[int]
) -> tuple[tuple[Token, ...], ...]:
    """Of the N drawn tokens those of each sequence's run: one, and one more for each right draft."""
    runs, first = [], 0
    for drafts, accepted in zip(num_drafts, num_accepted, strict=True):
        runs.append(tuple(drawn[first : first + accepted + 1]))
        first += 1 + drafts
    return tuple(runs)
