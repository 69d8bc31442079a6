"""The weights of routed experts as they are held for serving: FP4 as released, four bits and a quarter, or FP8."""

from dataclasses import dataclass

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.formats import decode_e2m1, ue8m0_decode, unpack_fp4
from benthic.kernels.inputs import require_choice
from benthic.kernels.linear import Fp8Weight
from benthic.kernels.moe_experts.layout import PIECE_BYTES, TILE, Kind, fits, from_pieces, to_pieces
from benthic.kernels.moe_experts.spans import Exponents, Form, Spans, lengthen, shorten

GROUP = 32
RUN = 128
"""Inputs of one step of the product: the group of an FP8 scale of the activations."""
TABLE_SHIFT = 5
"""The widened code of 0.5 under distance 0 is e4m3's 2^-6, so a base is 2^5 greater than the scale it stands for."""
_AT_ONCE = 64 * 2**20
"""Weights that are repacked at once."""


@dataclass(frozen=True, slots=True)
class Fp4Experts:
    """E matrices [O, I] of e2m1 codes with a UE8M0 exponent for each 32 inputs.

    Attributes:
        codes: in the streamed forms ("row", "block") uint8 [E, O / 256, I / 256, 34816], see `layout`; in the plain
            form the official bytes uint8 [E, O, I / 2].
        scale: float32 [E, O], the base of each row (streamed), or the official UE8M0 bytes uint8 [E, O, I / 32].
        kind: what the matrices are; it settles which outputs stand side by side in `codes`.
        form: how exponents are held. It depends on the matrices alone, never on a pass.
        spans: what was found of their exponents.
    """

    codes: Tensor
    scale: Tensor
    kind: Kind
    form: Form
    spans: Spans

    @property
    def shape(self) -> tuple[int, int, int]:
        """(E, O, I)."""
        if self.form == "plain":
            return self.codes.shape[0], self.codes.shape[1], 2 * self.codes.shape[2]
        return self.codes.shape[0], self.codes.shape[1] * TILE, self.codes.shape[2] * TILE

    @property
    def device(self) -> torch.device:
        return self.codes.device

    def official(self, start: int = 0, end: int | None = None) -> tuple[Tensor, Tensor]:
        """Codes uint8 [n, O, I / 2] and UE8M0 bytes [n, O, I / 32] of experts start .. end - 1.

        Exactly what was packed, but that the exponent of a group of zeros may be another.
        """
        codes, scale = self.codes[start:end], self.scale[start:end]
        if self.form == "plain":
            return codes, scale
        codes, short = from_pieces(codes, self.kind)
        return codes, lengthen(short, (scale.view(torch.int32) >> 23) - TABLE_SHIFT, self.form)

    def matrix(self, expert: int) -> Tensor:
        """One expert's values, float32 [O, I], exact."""
        codes, scale = self.official(expert, expert + 1)
        values = decode_e2m1(unpack_fp4(codes[0])).unflatten(-1, (-1, GROUP))
        return (values * ue8m0_decode(scale[0])[..., None]).flatten(-2)

    def step_scale(self, expert: int, run: int, row_scale: Tensor) -> Tensor:
        """What a run's sums are multiplied by: rows' scales [n] -> [n, 1]."""
        return row_scale[:, None]


class Fp8Experts(Fp8Weight):
    """E matrices [O, I] in e4m3: `data` [E, O, I]; `scale` float32 [E, ceil(O / 128), ceil(I / 128)] of their tiles."""

    def matrix(self, expert: int) -> Tensor:
        """One expert's codes, float32 [O, I], without their scales."""
        return self.data[expert].float()

    def step_scale(self, expert: int, run: int, row_scale: Tensor) -> Tensor:
        """What sums over inputs 128 run .. 128 run + 127 are multiplied by: rows' scales [n] -> [n, O]."""
        own = self.scale[expert, :, run].repeat_interleave(RUN)[: self.data.shape[1]]
        return row_scale[:, None] * own


def pack_fp4_experts(codes: Tensor, scale: Tensor, kind: Kind) -> Fp4Experts:
    """Lays released experts out for serving; made once at load.

    Args:
        codes: uint8 or int8 [E, O, I / 2], two e2m1 codes a byte, the even input in the low half.
        scale: uint8 or float8_e8m0fnu [E, O, I / 32].
        kind: "w13" (gate rows, then up rows) or "w2".

    Returns:
        The streamed form where O and I are multiples of 256 and exponents reach (`spans`): in each row no more than 12
        steps apart, or else in each run of 128 inputs. All other matrices keep the plain form. No value changes.

    Raises:
        KernelInputError: shapes or dtypes do not fit.
    """
    if codes.dtype not in (torch.uint8, torch.int8) or scale.dtype not in (torch.uint8, torch.float8_e8m0fnu):
        raise KernelInputError(
            f"codes are {codes.dtype} and scales {scale.dtype}; they must be bytes and float8_e8m0fnu or uint8"
        )
    codes, scale = codes.view(torch.uint8), scale.view(torch.uint8)
    if codes.dim() != 3 or 2 * codes.shape[2] % GROUP or scale.shape != (*codes.shape[:2], 2 * codes.shape[2] // GROUP):
        raise KernelInputError(
            f"codes have shape {tuple(codes.shape)} and scales {tuple(scale.shape)}; "
            "they must be [E, O, I / 2] and [E, O, I / 32]"
        )
    require_choice("kind", kind, Kind)
    outputs, inputs = codes.shape[1], 2 * codes.shape[2]
    if not outputs or not inputs or (kind == "w13" and outputs % 2):
        raise KernelInputError(
            f"codes have shape {tuple(codes.shape)}; matrices must not be empty, and those of w13 have gate and up rows"
        )
    if not fits(outputs, inputs) or not codes.shape[0]:
        return Fp4Experts(codes, scale, kind, "plain", _no_spans(codes))
    exponents = shorten_all(codes, scale)
    if exponents.form == "plain":
        return Fp4Experts(codes, scale, kind, "plain", exponents.spans)
    pieces = codes.new_empty(codes.shape[0], outputs // TILE, inputs // TILE, PIECE_BYTES)
    for start, end in _portions(codes):
        pieces[start:end] = to_pieces(codes[start:end], exponents.codes[start:end], kind)
    base = ((exponents.least + TABLE_SHIFT) << 23).view(torch.float32)
    return Fp4Experts(pieces, base, kind, exponents.form, exponents.spans)


def shorten_all(codes: Tensor, scale: Tensor) -> Exponents:
    """`shorten` in portions of experts; one form for all, the least short that any of them needs."""
    parts = [shorten(codes[start:end], scale[start:end]) for start, end in _portions(codes)]
    spans = [part.spans for part in parts]
    total = Spans(
        max(one.widest_row for one in spans),
        max(one.widest_run for one in spans),
        sum(one.num_wide_rows for one in spans),
        sum(one.num_rows for one in spans),
    )
    forms = {part.form for part in parts}
    least = torch.cat([part.least for part in parts])
    if "plain" in forms:
        return Exponents(scale, least, "plain", total)
    # A row that needs no exponents of its runs reads the same in the block form: their distance is 0.
    return Exponents(torch.cat([part.codes for part in parts]), least, "block" if "block" in forms else "row", total)


def _portions(codes: Tensor) -> list[tuple[int, int]]:
    """(start, end) of experts that are repacked together, so that a load needs little memory beside the weights."""
    step = max(1, _AT_ONCE // (2 * codes.shape[1] * codes.shape[2]))
    return [(start, min(start + step, codes.shape[0])) for start in range(0, codes.shape[0], step)]


def _no_spans(codes: Tensor) -> Spans:
    return Spans(0, 0, 0, codes.shape[0] * codes.shape[1])
