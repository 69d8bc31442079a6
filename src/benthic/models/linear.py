"""The seam for products: a bias-free linear layer that `parallel` may replace."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benthic.kernels.linear import by_columns, linear
from benthic.kernels.precision import wide
from benthic.models.numerics import Numerics


class Linear(nn.Module):
    """y = x W^T with W [out, in]; `quantized` layers see their input rounded under that policy."""

    def __init__(self, in_features: int, out_features: int, numerics: Numerics | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.numerics = numerics

    def forward(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        """[R, in] -> [R, out] in x's dtype, or `out_dtype`."""
        return self.product(x if self.numerics is None else self.numerics.linear_input(x), out_dtype)

    def product(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        """The same of an input that is rounded already."""
        return linear(x, self.weight, out_dtype)

    def freeze(self) -> None:
        """Lays the weight out for serving; values stay."""
        self.weight.data = by_columns(self.weight)


def island(x: Tensor, weight: Tensor, numerics: Numerics) -> Tensor:
    """x W^T in at least float32 (model.md 3.3): [R, in] and [out, in] -> [R, out].

    A native model multiplies the bfloat16 values as they are and adds in float32: products of two are exact in it.
    """
    if numerics.is_native:
        return linear(x, weight.to(x.dtype), torch.promote_types(x.dtype, torch.float32))
    return linear(wide(x), weight)


class StackedLinear:
    """Several linear layers that read one input, as one product. Not a module: it owns nothing.

    The last `num_isolated` layers learn from their own gradient and pass none on to the input: the indexer's loss
    shall not pull at the trunk. The stack is made on the fly while weights train, and kept by `freeze` when they stand
    still.
    """

    def __init__(self, layers: list[Linear], num_isolated: int = 0) -> None:
        self.layers = layers
        self.widths = [layer.weight.shape[0] for layer in layers]
        self.num_isolated = num_isolated
        self.frozen: Tensor | None = None

    def weight(self) -> Tensor:
        """[sum of out, in]."""
        return self.frozen if self.frozen is not None else _stacked(self.layers)

    def freeze(self) -> None:
        """Keeps the stacked weight; call again after weights change."""
        self.frozen = by_columns(_stacked(self.layers))

    def __call__(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        """[R, in] -> [R, sum of out]."""
        numerics = self.layers[0].numerics
        return self.product(x if numerics is None else numerics.linear_input(x), out_dtype)

    def product(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        """The same of an input that is rounded already."""
        return self._passing(linear(x, self.weight(), out_dtype), lambda own: linear(x.detach(), own, out_dtype))

    def island(self, x: Tensor, numerics: Numerics) -> Tensor:
        """The same as an `island`, of an input that is not rounded."""
        return self._passing(island(x, self.weight(), numerics), lambda own: island(x.detach(), own, numerics))

    def _passing(self, y: Tensor, multiply: Callable[[Tensor], Tensor]) -> Tensor:
        """y, whose last outputs pass no gradient on to the input: `multiply` them with their own weights alone."""
        if not (self.num_isolated and y.requires_grad):
            return y
        isolated = _stacked(self.layers[-self.num_isolated :])
        passing, alone = y.split([y.shape[1] - isolated.shape[0], isolated.shape[0]], dim=-1)
        own = multiply(isolated)
        # The values stay those of the one product, to the bit; only the way of the gradient changes.
        return torch.cat([passing, alone.detach() + (own - own.detach())], dim=-1)


def _stacked(layers: list[Linear]) -> Tensor:
    return torch.cat([layer.weight for layer in layers]) if len(layers) > 1 else layers[0].weight
