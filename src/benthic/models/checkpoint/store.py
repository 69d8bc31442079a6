"""Pieces into a model's memory: numbers into wide tensors, released codes into native ones as they are.

Beside the model, memory holds one piece and, in a native model, the codes of one stack of experts until all have come:
their layout for serving is made of whole stacks. No expert is ever widened.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from benthic.formats import ue8m0_decode
from benthic.models.checkpoint.codec import Encoded, decode, encode
from benthic.models.checkpoint.names import ExpertSlice, expert_slice
from benthic.models.checkpoint.piece import Piece
from benthic.models.checkpoint.source import Stored, piece_of
from benthic.models.checkpoint.table import BLOCK, GROUP, storage
from benthic.models.experts import NativeExperts, Stack
from benthic.models.transformer import Transformer


@dataclass(slots=True)
class _Gathered:
    """Codes of a stack of experts, as far as they have come."""

    codes: Tensor
    scale: Tensor
    num_missing: int


class PieceStore:
    """Takes the pieces of one model, each once and in any order."""

    def __init__(self, model: Transformer) -> None:
        self._config, self._device, self._is_native = model.config, model.device, model.numerics.is_native
        self._state = model.state_dict()
        self._experts = {name: module for name, module in model.named_modules() if isinstance(module, NativeExperts)}
        self._gathered: dict[str, _Gathered] = {}

    def put(self, piece: Piece, stored: Stored) -> None:
        """Puts a piece where the model keeps it; rounded to the model's format if it is stored in another."""
        part, stored = expert_slice(piece.name), stored.to(self._device)
        if part is not None and self._experts:
            self._put_expert(piece, part, stored)
        elif (scale := self._state.get(piece.name.removesuffix("weight") + "scale")) is not None:
            codes = self._encoded(stored, "fp8")
            self._state[piece.name].copy_(codes.weight)
            scale.copy_(_numbers(codes.scale))
        else:
            piece_of(self._state, piece).copy_(self._values(piece, stored))

    def _values(self, piece: Piece, stored: Stored) -> Tensor:
        """Numbers of a wide tensor. Among native ones it holds what its file would: `wo_a` is FP8 there."""
        form = storage(piece, self._config, "official")
        if self._is_native and form == "fp8" and stored.form != "fp8":
            return decode(encode(stored.values(), form, self._config.scale_dtype), form)
        return stored.values()

    def _put_expert(self, piece: Piece, part: ExpertSlice, stored: Stored) -> None:
        name, stack = part.stack.rsplit(".", 1)
        experts = self._experts[name]
        if part.stack not in self._gathered:
            self._gathered[part.stack] = self._empty(experts, piece, halves=2 if stack == "w13" else 1)
        found, codes = self._gathered[part.stack], self._encoded(stored, experts.form)
        _place(found.codes, part, codes.weight)
        _place(found.scale, part, codes.scale if experts.form == "fp4" else _numbers(codes.scale))
        found.num_missing -= 1
        if not found.num_missing:
            del self._gathered[part.stack]
            experts.hold(_STACKS[stack], found.codes, found.scale)

    def _empty(self, experts: NativeExperts, piece: Piece, halves: int) -> _Gathered:
        (outputs, inputs), number = piece.shape, experts.num_experts
        shape, scales = (number, halves * outputs, inputs), (number, halves * -(-outputs // BLOCK), -(-inputs // BLOCK))
        dtype, scale_dtype = torch.float8_e4m3fn, torch.float32
        if experts.form == "fp4":
            shape, scales = (*shape[:2], inputs // 2), (*shape[:2], inputs // GROUP)
            dtype = scale_dtype = torch.uint8
        codes = torch.empty(shape, dtype=dtype, device=self._device)
        return _Gathered(codes, torch.empty(scales, dtype=scale_dtype, device=self._device), number * halves)

    def _encoded(self, stored: Stored, form: str) -> Encoded:
        """Codes and scales in a format: those that are stored, if they are in it."""
        if stored.form == form:
            return stored.data
        return encode(stored.values(), "fp4" if form == "fp4" else "fp8", self._config.scale_dtype)


_STACKS: dict[str, Stack] = {"w13": "w13", "w2": "w2"}


def _place(stack: Tensor, part: ExpertSlice, values: Tensor | None) -> None:
    """Copies a matrix to its expert, and in it to the half of `part`."""
    assert values is not None, "released experts have scales"
    if stack.dtype == torch.uint8:
        values = values.view(torch.uint8)
    stack[part.expert].narrow(0, part.half * values.shape[0], values.shape[0]).copy_(values)


def _numbers(scale: Tensor | None) -> Tensor:
    assert scale is not None, "FP8 codes have scales"
    return ue8m0_decode(scale) if scale.dtype == torch.float8_e8m0fnu else scale
