"""The two numerics policies: what is rounded on the way through the model.

`plain` rounds nothing: the function that published reference implementations compute from dequantised weights.
`quantized` performs the rounding steps that the released weights were trained with (model.md 3.2). Both are functions
of a token's own prefix alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from benthic.errors import ConfigError
from benthic.kernels.quantize import hadamard, round_trip_fp4, round_trip_fp8

Policy = Literal["plain", "quantized"]


@dataclass(frozen=True, slots=True)
class Numerics:
    """Chosen once when a model is built; every method is the identity under `plain`."""

    policy: Policy = "plain"

    def __post_init__(self) -> None:
        if self.policy not in ("plain", "quantized"):
            raise ConfigError(f"numerics ({self.policy!r}) must be 'plain' or 'quantized'")

    def linear_input(self, x: Tensor) -> Tensor:
        """Input of an FP8 or FP4 product: FP8 in groups of 128."""
        return _in_groups(round_trip_fp8, x, 128) if self.policy == "quantized" else x

    def kv_entry(self, x: Tensor, rope_dim: int) -> Tensor:
        """A kv entry [..., d] after rotation: FP8 in groups of 64 on the dims that do not rotate."""
        if self.policy == "plain":
            return x
        still = x.shape[-1] - rope_dim
        x = x.clone()
        x[..., :still] = _in_groups(round_trip_fp8, x[..., :still], 64)
        return x

    def index_vector(self, x: Tensor) -> Tensor:
        """An indexer query or key after rotation: Hadamard, then FP4 in groups of 32.

        Under `plain` the Hadamard is left out too: it cancels in the product of query and key.
        """
        return _in_groups(round_trip_fp4, hadamard(x), 32) if self.policy == "quantized" else x


def _in_groups(round_trip: Callable[[Tensor, int], Tensor], x: Tensor, group: int) -> Tensor:
    """Rounds runs of `group` values; the last one may be shorter, as in models smaller than the released ones."""
    missing = -x.shape[-1] % group
    if not missing:
        return round_trip(x, group)
    # Zeros move neither the largest magnitude of a group nor the values beside them.
    return round_trip(F.pad(x, (0, missing)), group)[..., : x.shape[-1]]
