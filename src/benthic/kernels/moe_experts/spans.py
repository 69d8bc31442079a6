"""How far the exponents of an FP4 matrix lie apart, and their short form.

Widening reads a code's e4m3 byte from a table that its group's exponent has shifted: e4m3 holds the FP4 magnitudes
times 2^0 .. 2^11, twelve steps. A row whose groups span no more has one float32 base. One that spans more still has the
short form if each of its runs of 128 inputs spans no more by itself: the run then has an exponent of its own, applied
where its sum is added up. Groups of zeros take any exponent and count for nothing.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Form = Literal["row", "block", "plain"]
"""A base a row; a base a row and an exponent for each of its 128 inputs; or official codes, widened exactly."""

STEPS = 12
"""Exponents that one table reaches."""
BLOCK_REACH = 96
"""Exponents between a row's least run of 128 and its greatest: float32 holds any sum times 2^96."""
LARGEST_BYTE = 249
"""The base 2^(byte - 122) of a greater UE8M0 byte is not finite."""


class Spans(NamedTuple):
    """Greatest exponent distances of a stack of experts: in a row, in its runs of 128, and rows beyond one table."""

    widest_row: int
    widest_run: int
    num_wide_rows: int
    num_rows: int


class Exponents(NamedTuple):
    """The short form: `codes` uint8 [E, O, I / 32]; `least` int32 [E, O], the UE8M0 byte that 0 stands for.

    A code is the group's distance from its row's least exponent (row form), or in its low four bits from its run's,
    whose own distance from the row's stands in the high bits of the run's first two codes, low half first (block form).
    """

    codes: Tensor
    least: Tensor
    form: Form
    spans: Spans


def shorten(codes: Tensor, scale: Tensor) -> Exponents:
    """Codes uint8 [E, O, I / 2] and UE8M0 bytes [E, O, I / 32] -> exponents; I a multiple of 128.

    In the plain form the codes are the bytes.
    """
    lives = ((codes & 0x77) != 0).view(*scale.shape, 16).any(-1)
    shift, least = _distances(scale.short(), lives)
    runs, run_lives = shift.unflatten(-1, (-1, 4)), lives.unflatten(-1, (-1, 4))
    within, offset = _distances(runs, run_lives)
    row_span, run_span = shift.amax(-1), within.amax((-1, -2))
    wide = row_span >= STEPS
    spans = Spans(int(row_span.max()), int(run_span.max()), int(wide.sum()), wide.numel())
    if bool((scale.masked_fill(~lives, 0) > LARGEST_BYTE).any()):
        return Exponents(scale, least.int(), "plain", spans)
    if spans.widest_row < STEPS:
        return Exponents(shift.to(torch.uint8), least.int(), "row", spans)
    if spans.widest_run >= STEPS or int(offset.max()) > BLOCK_REACH:
        return Exponents(scale, least.int(), "plain", spans)
    within[..., 0] |= (offset & 15) << 4
    within[..., 1] |= (offset >> 4) << 4
    return Exponents(within.flatten(-2).to(torch.uint8), least.int(), "block", spans)


def lengthen(codes: Tensor, least: Tensor, form: Form) -> Tensor:
    """The UE8M0 bytes; a group of zeros comes back with its row's least exponent, or its run's."""
    short = codes.int()
    if form == "block":
        runs = short.unflatten(-1, (-1, 4))
        offset = (runs[..., 0] >> 4) | (runs[..., 1] >> 4 << 4)
        short = ((runs & 15) + offset[..., None]).flatten(-2)
    return (short + least[..., None]).to(torch.uint8)


def _distances(exponents: Tensor, lives: Tensor) -> tuple[Tensor, Tensor]:
    """Of the last dim: distance from the least that counts (0 where none does), and that least."""
    least = torch.where(lives, exponents, 1000).amin(-1)
    least = torch.where(lives.any(-1), least, 0)
    return torch.where(lives, exponents - least[..., None], 0), least
