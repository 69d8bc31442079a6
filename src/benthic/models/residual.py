"""Residual streams between sub-layers, and plain ones: one stream that sub-layers read and add to (family.md 2).

Streams are [R, n, D] in every family, plain ones with n = 1: nothing outside a site asks which family it serves.
A sub-layer's output joins the streams where the next sub-layer enters: there both are one operation.
"""

from typing import NamedTuple, Protocol

from torch import Tensor, nn

from benthic.kernels.moe_experts import PickedRows
from benthic.kernels.precision import wide
from benthic.kernels.rms_norm import rms_norm
from benthic.models.numerics import LayerInput, Numerics


class Unmerged(NamedTuple):
    """Streams [R, n, D], and a sub-layer's output that has not joined them yet.

    output: [R, D] or its parts, None where no sub-layer came before; addend: [R, D] or None, where it has two halves.
    post, comb: how they join under mHC (see `hyper_post`); None in a plain residual.
    """

    streams: Tensor
    output: Tensor | PickedRows | None
    addend: Tensor | None
    post: Tensor | None
    comb: Tensor | None

    def summed(self) -> Tensor:
        """The output, or the first half of it."""
        assert self.output is not None, "nothing was left"
        return self.output.summed() if isinstance(self.output, PickedRows) else self.output


class Entered(NamedTuple):
    """A sub-layer's normed input, and the streams as they are when it reads them; post and comb as in `Unmerged`."""

    input: LayerInput
    streams: Tensor
    post: Tensor | None = None
    comb: Tensor | None = None

    def left(self, output: Tensor | PickedRows, addend: Tensor | None = None) -> Unmerged:
        """What the sub-layer leaves behind: its output [R, D], or its two halves."""
        return Unmerged(self.streams, output, addend, self.post, self.comb)


class Site(Protocol):
    """Where a sub-layer reads the streams, and where its output joins them."""

    def enter(self, before: Tensor | Unmerged, gain: Tensor, mixing: tuple[Tensor, ...]) -> Entered:
        """Merges what the sub-layer before left, reads the streams and norms what was read."""
        ...

    def merge(self, before: Tensor | Unmerged) -> Tensor:
        """Streams [R, n, D] with the output in them; those that nothing left as they are."""
        ...


class PlainSite(nn.Module):
    """One site of a layer; has no parameters.

    Args:
        norm_eps: of the norm before the sub-layer.
        numerics: how products see their inputs.
    """

    def __init__(self, norm_eps: float, numerics: Numerics) -> None:
        super().__init__()
        self.norm_eps, self.numerics = norm_eps, numerics

    def enter(self, before: Tensor | Unmerged, gain: Tensor, mixing: tuple[Tensor, ...] = ()) -> Entered:
        """See `Site`; nothing is mixed."""
        streams = self.merge(before)
        return Entered(self.numerics.layer_input(rms_norm(streams[:, 0], gain, self.norm_eps)), streams)

    def merge(self, before: Tensor | Unmerged) -> Tensor:
        """See `Site`."""
        if isinstance(before, Tensor):
            return before
        output = before.summed()
        if before.addend is not None:
            output = wide(output) + wide(before.addend)
        return before.streams + output.to(before.streams.dtype)[:, None]


class PlainHead(nn.Module):
    """From the stream to the output head: the final norm."""

    def __init__(self, norm_eps: float) -> None:
        super().__init__()
        self.norm_eps = norm_eps

    def forward(self, streams: Tensor, gain: Tensor) -> Tensor:
        """[R, 1, D] -> [R, D]; `gain` is the norm's."""
        return rms_norm(streams[:, 0], gain, self.norm_eps)
