"""The two numerics policies: what is rounded on the way through the model.

`plain` rounds nothing: the function that published reference implementations compute from dequantised weights.
`quantized` performs the rounding steps that the released weights were trained with (model.md 3.2), which differ from
family to family. Both are functions of a token's own prefix alone.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from benthic.errors import ConfigError
from benthic.formats import ScaleFormat
from benthic.kernels.entry_write import IndexRounding, round_index_vector, round_kv_entry
from benthic.kernels.quantize import QuantizedRows, quantize_rows, round_trip_rows
from benthic.models.config import ModelConfig

Policy = Literal["plain", "quantized"]
Weights = Literal["wide", "native"]
"""How weights are held and multiplied: as numbers of the activations' dtype and wider, or in the released formats."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """What one family's weights were trained with; the defaults are V4's."""

    linear: bool = True
    """Inputs of FP8 and FP4 products, in FP8 groups of 128."""
    scale: ScaleFormat = "ue8m0"
    """Scales of all FP8 groups."""
    kv_group: int = 64
    """FP8 group on the dims of a kv entry that do not rotate; 0 leaves entries alone."""
    index: Literal["fp4", "fp8"] = "fp4"
    """Indexer queries and keys: FP4 in groups of 32, or FP8 in groups of 128."""


def family_rounding(config: ModelConfig) -> Rounding:
    """The rounding steps of a model's family.

    V2 was released in bf16 and rounds nothing; V3 rounds what enters its FP8 products and keeps entries; V3.2 rounds
    entries and index vectors as well (its official cache holds them in FP8 with groups of 128).
    """
    if not config.is_latent:
        return Rounding()
    has_index = any(layer.has_index for layer in config.layers)
    return Rounding(
        linear=config.weight_dtype == "fp8",
        scale=config.scale_dtype,
        kv_group=128 if has_index else 0,
        index="fp8",
    )


class LayerInput(NamedTuple):
    """What a sub-layer reads, [R, D]: `values` for products in bf16 and fp32, `rounded` for those in FP8 and FP4.

    Rounded once, for all products of the input; under `plain` both are one tensor. `alone`: see Boundary.
    """

    values: Tensor
    rounded: Tensor | QuantizedRows
    alone: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Numerics:
    """Chosen once when a model is built; every method is the identity under `plain`."""

    policy: Policy = "plain"
    rounding: Rounding = Rounding()
    weights: Weights = "wide"

    def __post_init__(self) -> None:
        if self.policy not in ("plain", "quantized"):
            raise ConfigError(f"numerics ({self.policy!r}) must be 'plain' or 'quantized'")
        if self.weights not in ("wide", "native"):
            raise ConfigError(f"weights ({self.weights!r}) must be 'wide' or 'native'")
        if self.is_native and not (self.policy == "quantized" and self.rounding.linear):
            raise ConfigError(
                f"weights='native' under numerics={self.policy!r}: products of FP8 rows are those of numerics="
                "'quantized', in models that were released in FP8; give both, or weights='wide'"
            )

    @property
    def is_native(self) -> bool:
        """Whether products take weights in the released formats."""
        return self.weights == "native"

    @property
    def native_scale(self) -> ScaleFormat | None:
        """Scales of the FP8 rows that native products take; None where products take wide ones."""
        return self.rounding.scale if self.is_native else None

    @property
    def kv_group(self) -> int:
        """FP8 group of a kv entry's dims that do not rotate; 0: they are left alone."""
        return 0 if self.policy == "plain" else self.rounding.kv_group

    @property
    def index_rounding(self) -> IndexRounding:
        """Of indexer queries and keys."""
        return "none" if self.policy == "plain" else self.rounding.index

    def linear_input(self, x: Tensor) -> Tensor | QuantizedRows:
        """Input of an FP8 or FP4 product, rounded to FP8 in groups of 128; natively as codes and scales."""
        if self.policy == "plain" or not self.rounding.linear:
            return x
        if self.is_native:
            return quantize_rows(x, self.rounding.scale)
        # The last group may be shorter, as in models smaller than the released ones.
        return round_trip_rows(x, self.rounding.scale)

    def layer_input(self, x: Tensor) -> LayerInput:
        """A sub-layer's normed input, as its products see it."""
        return LayerInput(x, self.linear_input(x))

    def kv_entry(self, x: Tensor, rope_dim: int) -> Tensor:
        """A kv entry [..., d] after rotation: FP8 in groups on the dims that do not rotate."""
        return round_kv_entry(x, rope_dim, self.kv_group, self.rounding.scale)

    def index_vector(self, x: Tensor) -> Tensor:
        """An indexer query or key after rotation: Hadamard, then FP4 in groups of 32 or FP8 in groups of 128.

        Under `plain` the Hadamard is left out too: it cancels in the product of query and key.
        """
        return round_index_vector(x, self.index_rounding, self.rounding.scale)
