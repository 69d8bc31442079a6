"""Rounding to the values that low-precision formats can hold, and back."""

from benthic.kernels.quantize.op import (
    WeightFormat,
    hadamard,
    quantize_rows,
    round_trip_fp4,
    round_trip_fp8,
    round_trip_rows,
    round_weight,
)
from benthic.kernels.quantize.rows import QuantizedRows

__all__ = [
    "QuantizedRows",
    "WeightFormat",
    "hadamard",
    "quantize_rows",
    "round_trip_fp4",
    "round_trip_fp8",
    "round_trip_rows",
    "round_weight",
]
