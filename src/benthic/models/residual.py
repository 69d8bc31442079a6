"""The plain residual: one stream that every sub-layer reads and adds to (family.md 2).

Streams are [R, n, D] in every family, here with n = 1, so that nothing outside a block asks which family it serves.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn


class Entered(NamedTuple):
    """A sub-layer's input [R, D], and what merges its output [R, D] into the streams: [R, n, D]."""

    input: Tensor
    merge: Callable[[Tensor], Tensor]


class PlainSite(nn.Module):
    """One site of a layer; has no parameters."""

    def enter(self, streams: Tensor) -> Entered:
        """[R, 1, D] streams -> what the sub-layer reads and how its output joins them."""
        return Entered(streams[:, 0], lambda output: streams + output[:, None])


class PlainHead(nn.Module):
    """From the stream to the final norm's input."""

    def forward(self, streams: Tensor) -> Tensor:
        """[R, 1, D] -> [R, D]."""
        return streams[:, 0]
