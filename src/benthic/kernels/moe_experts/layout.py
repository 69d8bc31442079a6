"""How FP4 experts lie in memory for the streaming kernel: one contiguous piece a tile and stage, decoded by bit tricks.

A piece belongs to 256 outputs x 256 inputs, 34,816 bytes: 32,768 of codes, then 2048 of exponents.

    codes       [16 slices][2 of 128 inputs][2 of 64][32 lanes][16 bytes]
                One lane of a warp loads 16 bytes: words (inputs 0-31, 32-63) x (output line g, g + 8), g = lane / 4.
    word        8 codes of one output, inputs 4t .. 4t+3 and 16+4t .. 16+4t+3 of its 32, t = lane % 4. Nibble n holds
                the magnitude of code n as a byte selector; the signs stand where two masks move them to the sign bits
                of e4m3: nibble 2i+1 has the sign of code i, nibble 2i that of code 4+i.
    exponents   [16 slices][8 g][2 lines][8 groups of 32 inputs] bytes

A slice is the 16 lines of one warp's product. Which outputs its lines are depends on the kind: in w2 lines g and g + 8
are outputs 2g and 2g + 1, so that a thread stores neighbours; in w13 they are gate and up of one column, so that
SwiGLU happens inside a thread, and 256 lines are just one group of 128 columns that share an FP8 scale.
"""

from typing import Literal

import torch
from torch import Tensor

Kind = Literal["w13", "w2"]
"""Which outputs stand side by side: gate and up of a column, or neighbours."""

TILE = 256
"""Outputs of a tile and inputs of a stage."""
PIECE_BYTES = TILE * TILE // 2 + TILE * TILE // 32
_CODE_BYTES = TILE * TILE // 2
_SIGN_OF_NIBBLE = (4, 0, 5, 1, 6, 2, 7, 3)
_NIBBLE_OF_SIGN = (1, 3, 5, 7, 0, 2, 4, 6)


def fits(outputs: int, inputs: int) -> bool:
    """True if a matrix is made of whole pieces."""
    return outputs % TILE == 0 and inputs % TILE == 0


def to_pieces(codes: Tensor, exponents: Tensor, kind: Kind) -> Tensor:
    """Codes uint8 [E, O, I / 2] (official order) and bytes [E, O, I / 32] -> uint8 [E, O / 256, I / 256, 34816]."""
    experts, outputs, inputs = codes.shape[0], codes.shape[1], 2 * codes.shape[2]
    nibbles = torch.stack((codes & 15, codes >> 4), dim=-1).view(experts, outputs, inputs)
    lines = _by_lines(nibbles, kind)  # [E, tile, slice, g, h, I]
    split = lines.view(*lines.shape[:5], -1, 2, 2, 2, 2, 4, 4)  # ... stage, 128s, 64s, 32s, half, t, i
    ordered = split.permute(0, 1, 5, 2, 6, 7, 3, 10, 8, 4, 9, 11)  # E tile stage slice 128s 64s g t 32s h half i
    words = ordered.reshape(*ordered.shape[:10], 8)
    signs = (words & 8)[..., list(_SIGN_OF_NIBBLE)]
    mixed = (words & 7) | signs
    packed = mixed[..., 0::2] | (mixed[..., 1::2] << 4)
    scale = _by_lines(exponents, kind)
    scale = scale.view(*scale.shape[:5], -1, 8).permute(0, 1, 5, 2, 3, 4, 6)  # E tile stage slice g h group
    tiles = (experts, outputs // TILE, inputs // TILE)
    return torch.cat((packed.reshape(*tiles, _CODE_BYTES), scale.reshape(*tiles, -1)), dim=-1)


def from_pieces(pieces: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """The inverse of `to_pieces`."""
    experts, tiles, stages = pieces.shape[:3]
    packed = pieces[..., :_CODE_BYTES].view(experts, tiles, stages, 16, 2, 2, 8, 4, 2, 2, 4)
    mixed = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
    words = (mixed & 7) | (mixed & 8)[..., list(_NIBBLE_OF_SIGN)]
    split = words.view(*words.shape[:10], 2, 4)  # E tile stage slice 128s 64s g t 32s h half i
    lines = split.permute(0, 1, 3, 6, 9, 2, 4, 5, 8, 10, 7, 11).reshape(experts, tiles, 16, 8, 2, -1)
    nibbles = _by_outputs(lines, kind)
    scale = pieces[..., _CODE_BYTES:].reshape(experts, tiles, stages, 16, 8, 2, 8).permute(0, 1, 3, 4, 5, 2, 6)
    exponents = _by_outputs(scale.reshape(experts, tiles, 16, 8, 2, -1), kind)
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4), exponents.contiguous()


def _by_lines(x: Tensor, kind: Kind) -> Tensor:
    """[E, O, n] -> [E, tile, slice, g, line, n]."""
    if kind == "w2":
        return x.view(x.shape[0], -1, 16, 8, 2, x.shape[2])
    return x.view(x.shape[0], 2, -1, 16, 8, x.shape[2]).permute(0, 2, 3, 4, 1, 5).contiguous()


def _by_outputs(x: Tensor, kind: Kind) -> Tensor:
    """[E, tile, slice, g, line, n] -> [E, O, n]."""
    ordered = x if kind == "w2" else x.permute(0, 4, 1, 2, 3, 5)
    return ordered.reshape(x.shape[0], -1, x.shape[-1])
