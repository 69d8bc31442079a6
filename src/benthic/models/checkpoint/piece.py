"""A piece: one matrix or vector of a model, whatever file it lies in."""

from typing import Literal, NamedTuple

Kind = Literal["block", "expert", "wide", "single", "ids"]
"""How the official files hold a piece: fp8 in 128x128 blocks or bf16, routed experts (fp4, fp8, bf16), bf16, fp32,
int64."""


class Piece(NamedTuple):
    """One tensor of the model under the house's name; `shape` counts values, not bytes."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
