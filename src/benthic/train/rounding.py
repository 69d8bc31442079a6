"""Quantisation-aware training: the forward pass sees the weights that the official file would hold.

Gradients with respect to the rounded weights go to the fp32 masters unchanged (paper 3.4: straight through).
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from benthic.kernels.quantize import WeightFormat, round_weight
from benthic.models.checkpoint.table import pieces, storage
from benthic.models.config import ModelConfig


def official_formats(config: ModelConfig, names: Iterable[str]) -> dict[str, WeightFormat]:
    """The format in which an official file holds each parameter.

    A layer's experts are stacked in the model and apart in the file, where the first of them speaks for all.
    """
    held = {piece.name: storage(piece, config, "official") for piece in pieces(config)}
    first_expert = {".experts.w13": ".experts.0.w1.weight", ".experts.w2": ".experts.0.w2.weight"}
    formats: dict[str, WeightFormat] = {}
    for name in names:
        in_file = name
        for stacked, single in first_expert.items():
            in_file = in_file.replace(stacked, single) if name.endswith(stacked) else in_file
        form = held[in_file]
        assert form != "ids", f"{name} is no parameter"
        formats[name] = form
    return formats


class WeightRounding:
    """Swaps a model's parameters for their rounded values and back, in place.

    `formats` gives the format of each parameter by name.
    """

    def __init__(self, named_parameters: Mapping[str, nn.Parameter], formats: Mapping[str, WeightFormat]) -> None:
        self._rounded = [
            (_as_in_file(name, parameter), formats[name])
            for name, parameter in named_parameters.items()
            if formats[name] != "fp32"
        ]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Parameters hold rounded values inside, and their own again outside. Gradients are left alone."""
        weights = [weight for weight, _ in self._rounded]
        masters = self._swap_in(weights)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(weights, masters)

    @torch.no_grad()
    def _swap_in(self, weights: list[Tensor]) -> list[Tensor]:
        masters = [weight.clone() for weight in weights]
        rounded = [round_weight(master, format) for master, (_, format) in zip(masters, self._rounded, strict=True)]
        torch._foreach_copy_(weights, rounded)
        return masters


def _as_in_file(name: str, parameter: nn.Parameter) -> Tensor:
    """A view in which the last two dims are a matrix of the file: gate and up of an expert are apart there."""
    data = parameter.data
    return data.unflatten(1, (2, -1)) if name.endswith(".experts.w13") else data
