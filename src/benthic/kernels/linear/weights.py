"""Weights held in the released FP8 format, as native products read them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.formats import dequantize_fp8, quantize_fp8, ue8m0_decode
from benthic.formats.fp8 import WEIGHT_FLOOR

BLOCK = 128
TILE = (BLOCK, BLOCK)


@dataclass(frozen=True)
class Fp8Weight:
    """e4m3 [..., O, I] with one scale for each 128 x 128 tile: value = data * scale.

    `scale` is float32 [..., ceil(O / 128), ceil(I / 128)]; leading dims are experts. Both are contiguous and on one
    device.
    """

    data: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        if self.data.dtype != torch.float8_e4m3fn or self.scale.dtype != torch.float32:
            raise KernelInputError(
                f"an FP8 weight has {self.data.dtype} data and {self.scale.dtype} scales; "
                "they must be float8_e4m3fn and float32"
            )
        if self.data.dim() < 2:
            raise KernelInputError(f"an FP8 weight has shape {tuple(self.data.shape)}; it must be [..., O, I]")
        *experts, outputs, inputs = self.data.shape
        tiles = (*experts, -(-outputs // BLOCK), -(-inputs // BLOCK))
        if tuple(self.scale.shape) != tiles:
            raise KernelInputError(
                f"an FP8 weight {tuple(self.data.shape)} has scales {tuple(self.scale.shape)}; they must be {tiles}"
            )
        if not (self.data.is_contiguous() and self.scale.is_contiguous()):
            raise KernelInputError("an FP8 weight has gaps in memory; make its data and scales contiguous")

    @property
    def shape(self) -> torch.Size:
        """[..., O, I]."""
        return self.data.shape

    @property
    def device(self) -> torch.device:
        """Where both tensors are."""
        return self.data.device

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values [..., O, I], code * scale in float32 (or float64 if asked for), then rounded to `dtype`."""
        return dequantize_fp8(self.data, self.scale, TILE, dtype=dtype)

    def to(self, device: torch.device) -> "Fp8Weight":
        """The same weight on another device."""
        return Fp8Weight(self.data.to(device), self.scale.to(device))

    @staticmethod
    def of(weight: Tensor) -> "Fp8Weight":
        """The official rounding of `weight` [..., O, I]: powers of two; a weight that came from FP8 comes back."""
        codes, scale = quantize_fp8(weight.contiguous(), TILE, floor=WEIGHT_FLOOR)
        return Fp8Weight(codes, ue8m0_decode(scale))


def stack_rows(weights: Sequence[Fp8Weight]) -> Fp8Weight:
    """Weights [O_i, I] of one input as one weight [sum O_i, I], so that one product serves all.

    Raises:
        KernelInputError: a weight before the last has a ragged tile (O_i is no multiple of 128): its tile's scale
            would have to serve two weights.
    """
    ragged = [tuple(weight.shape) for weight in weights[:-1] if weight.shape[-2] % BLOCK]
    if ragged:
        raise KernelInputError(f"a weight {ragged[0]} cannot be stacked before another; its rows must fill 128s")
    return Fp8Weight(torch.cat([w.data for w in weights], -2), torch.cat([w.scale for w in weights], -2))
