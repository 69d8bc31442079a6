"""Rows held in FP8 as a native product reads them."""

from typing import NamedTuple

import torch
from torch import Tensor

GROUP = 128
"""Values of a row that share a scale: one K step of the products that read them."""


class QuantizedRows(NamedTuple):
    """Activations in e4m3 with one scale for each 128 values of a row: value = data * scale.

    `data` is float8_e4m3fn [R, I], I a multiple of 128; `scale` is float32 [R, I / 128], powers of two under "ue8m0".
    """

    data: Tensor
    scale: Tensor

    @property
    def shape(self) -> torch.Size:
        """[R, I]."""
        return self.data.shape

    @property
    def device(self) -> torch.device:
        """Where both tensors are."""
        return self.data.device

    def rows(self, start: int, end: int) -> "QuantizedRows":
        """Rows start .. end - 1, as views."""
        return QuantizedRows(self.data[start:end], self.scale[start:end])

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values [R, I]: code * scale in float32 (or float64 if asked for), then rounded to `dtype`."""
        width = torch.float64 if dtype == torch.float64 else torch.float32
        grouped = self.data.to(width).unflatten(-1, (-1, GROUP)) * self.scale.to(width)[..., None]
        return grouped.flatten(-2).to(dtype)
