"""The seam for products: a bias-free linear layer that `parallel` may replace."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benthic.kernels.linear import Fp8Weight, by_columns, linear, stack_rows
from benthic.kernels.precision import wide
from benthic.kernels.quantize import QuantizedRows
from benthic.models.numerics import Numerics

BLOCK = 128
"""Rows and columns of a weight that share an FP8 scale."""


class Linear(nn.Module):
    """y = x W^T with W [out, in]; `quantized` layers see their input rounded under that policy.

    In a native model their weight is held as released: e4m3 in `weight`, a float32 scale for each 128 x 128 in `scale`.
    So is a weight that was released in FP8 though its input is not rounded (`rounds_input`).
    """

    weight: Tensor
    scale: Tensor | None

    def __init__(
        self, in_features: int, out_features: int, numerics: Numerics | None = None, *, rounds_input: bool = True
    ) -> None:
        super().__init__()
        self.numerics = numerics if rounds_input else None
        if numerics is not None and numerics.is_native:
            tiles = (-(-out_features // BLOCK), -(-in_features // BLOCK))
            self.register_buffer("weight", torch.empty(out_features, in_features, dtype=torch.float8_e4m3fn))
            self.register_buffer("scale", torch.empty(tiles))
        else:
            self.weight = nn.Parameter(torch.empty(out_features, in_features))
            self.scale = None

    def forward(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        """[R, in] -> [R, out] in x's dtype, or `out_dtype`."""
        return self.product(x if self.numerics is None else self.numerics.linear_input(x), out_dtype)

    def product(self, x: Tensor | QuantizedRows, out_dtype: torch.dtype | None = None) -> Tensor:
        """The same of an input that is rounded already; natively in bfloat16, or `out_dtype`."""
        return linear(x, self.held(), out_dtype)

    def held(self) -> Tensor | Fp8Weight:
        """The weight as products take it."""
        return self.weight if self.scale is None else Fp8Weight(self.weight, self.scale)

    def hold(self, weight: Fp8Weight) -> None:
        """Takes an FP8 weight of the same values from other memory."""
        self.weight, self.scale = weight.data, weight.scale

    def freeze(self) -> None:
        """Lays the weight out for serving; values stay."""
        if self.scale is None:
            self.weight.data = by_columns(self.weight)


def island(x: Tensor, weight: Tensor, numerics: Numerics) -> Tensor:
    """x W^T in at least float32 (model.md 3.3): [R, in] and [out, in] -> [R, out].

    A native model multiplies the bfloat16 values as they are and adds in float32: products of two are exact in it.
    """
    if numerics.is_native:
        return linear(x, weight.to(x.dtype), torch.promote_types(x.dtype, torch.float32))
    return linear(wide(x), weight)


def island_weight(weight: Tensor, numerics: Numerics) -> Tensor:
    """The weight as an `island` multiplies it, so that no pass has to widen it anew; values stay."""
    return by_columns(weight if numerics.is_native else wide(weight))


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
        self.frozen: Tensor | Fp8Weight | None = None

    @property
    def numerics(self) -> Numerics | None:
        """That of all its layers."""
        return self.layers[0].numerics

    def freeze(self, island: Numerics | None = None) -> None:
        """Keeps the stacked weight; call again after weights change. `island`: the numerics of an island's products.

        FP8 weights move into the stack, which takes no more memory than they did. Where tiles of 128 do not end with
        the layers, they stay apart.
        """
        if self.layers[0].scale is None:
            self.frozen = by_columns(self._wide()) if island is None else island_weight(self._wide(), island)
        elif not any(width % BLOCK for width in self.widths[:-1]):
            self.frozen = self._stacked_fp8()

    def __call__(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        """[R, in] -> [R, sum of out]."""
        return self.product(x if self.numerics is None else self.numerics.linear_input(x), out_dtype)

    def product(self, x: Tensor | QuantizedRows, out_dtype: torch.dtype | None = None) -> Tensor:
        """The same of an input that is rounded already."""
        if self.frozen is None and self.layers[0].scale is not None:
            return torch.cat([layer.product(x, out_dtype) for layer in self.layers], dim=-1)
        y = linear(x, self._wide() if self.frozen is None else self.frozen, out_dtype)
        return self._passing(y, lambda own: linear(_detached(x), own, out_dtype))

    def island(self, x: Tensor, numerics: Numerics) -> Tensor:
        """The same as an `island`, of an input that is not rounded."""
        weight = self._wide() if self.frozen is None else self.frozen
        assert isinstance(weight, Tensor), "an island has a wide weight"
        return self._passing(island(x, weight, numerics), lambda own: island(x.detach(), own, numerics))

    def _wide(self) -> Tensor:
        """[sum of out, in]."""
        return _stacked(self.layers)

    def _stacked_fp8(self) -> Fp8Weight:
        """One weight, of which the layers hold views."""
        stack = stack_rows([Fp8Weight(layer.weight, layer.scale) for layer in self.layers if layer.scale is not None])
        start = 0
        for layer, width in zip(self.layers, self.widths, strict=True):
            data, first = stack.data.narrow(0, start, width), start // BLOCK
            layer.hold(Fp8Weight(data, stack.scale.narrow(0, first, -(-width // BLOCK))))
            start += width
        return stack

    def _passing(self, y: Tensor, multiply: Callable[[Tensor], Tensor]) -> Tensor:
        """y, whose last outputs pass no gradient on to the input: `multiply` forms them of their own weights alone."""
        if not (self.num_isolated and y.requires_grad):
            return y
        isolated = _stacked(self.layers[-self.num_isolated :])
        passing, alone = y.split([y.shape[1] - isolated.shape[0], isolated.shape[0]], dim=-1)
        own = multiply(isolated)
        # The values stay those of the one product, to the bit; only the way of the gradient changes.
        return torch.cat([passing, alone.detach() + (own - own.detach())], dim=-1)


def _stacked(layers: list[Linear]) -> Tensor:
    return torch.cat([layer.weight for layer in layers]) if len(layers) > 1 else layers[0].weight


def _detached(x: Tensor | QuantizedRows) -> Tensor | QuantizedRows:
    return x.detach() if isinstance(x, Tensor) else x
