"""The seam for products: a bias-free linear layer that `parallel` may replace."""

import torch
from torch import Tensor, nn

from benthic.kernels.linear import linear
from benthic.models.numerics import Numerics


class Linear(nn.Module):
    """y = x W^T with W [out, in]; `quantized` layers see their input rounded under that policy."""

    def __init__(self, in_features: int, out_features: int, numerics: Numerics | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.numerics = numerics

    def forward(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        """[R, in] -> [R, out] in x's dtype, or `out_dtype`."""
        if self.numerics is not None:
            x = self.numerics.linear_input(x)
        return linear(x, self.weight, out_dtype)


class StackedLinear:
    """Several linear layers that read one input, as one product. Not a module: it owns nothing.

    The stack is made on the fly while weights train, and kept by `freeze` when they stand still.
    """

    def __init__(self, layers: list[Linear]) -> None:
        self.layers = layers
        self.widths = [layer.weight.shape[0] for layer in layers]
        self.frozen: Tensor | None = None

    def weight(self) -> Tensor:
        """[sum of out, in]."""
        if self.frozen is not None:
            return self.frozen
        return torch.cat([layer.weight for layer in self.layers]) if len(self.layers) > 1 else self.layers[0].weight

    def freeze(self) -> None:
        """Keeps the stacked weight; call again after weights change."""
        self.frozen = None
        self.frozen = self.weight().detach()

    def __call__(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        """[R, in] -> [R, sum of out]."""
        numerics = self.layers[0].numerics
        if numerics is not None:
            x = numerics.linear_input(x)
        return linear(x, self.weight(), out_dtype)
