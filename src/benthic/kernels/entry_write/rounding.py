"""The rounding of entries and of index vectors that the released weights were trained with (model.md 3.2)."""

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from benthic.formats import ScaleFormat
from benthic.kernels.quantize import hadamard, round_trip_fp4, round_trip_fp8

IndexRounding = Literal["none", "fp4", "fp8"]
"""Of indexer queries and keys: as they are; or Hadamard, then FP4 in groups of 32 or FP8 in groups of 128."""


def round_kv_entry(x: Tensor, rope_dim: int, group: int, scale: ScaleFormat = "ue8m0") -> Tensor:
    """A kv entry [..., d] after rotation: FP8 in groups on the dims that do not rotate; group 0 leaves it alone."""
    if not group:
        return x
    still = x.shape[-1] - rope_dim
    x = x.clone()
    x[..., :still] = _in_groups(lambda part, size: round_trip_fp8(part, size, scale), x[..., :still], group)
    return x


def round_index_vector(x: Tensor, rounding: IndexRounding, scale: ScaleFormat = "ue8m0") -> Tensor:
    """An indexer query or key after rotation."""
    if rounding == "none":
        return x
    if rounding == "fp4":
        return _in_groups(round_trip_fp4, hadamard(x), 32)
    return _in_groups(lambda part, size: round_trip_fp8(part, size, scale), hadamard(x), 128)


def _in_groups(round_trip: Callable[[Tensor, int], Tensor], x: Tensor, group: int) -> Tensor:
    """Rounds runs of `group` values; the last one may be shorter, as in models smaller than the released ones."""
    missing = -x.shape[-1] % group
    if not missing:
        return round_trip(x, group)
    # Zeros move neither the largest magnitude of a group nor the values beside them.
    return round_trip(F.pad(x, (0, missing)), group)[..., : x.shape[-1]]
