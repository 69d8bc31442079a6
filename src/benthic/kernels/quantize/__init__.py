"""Rounding to the values that low-precision formats can hold, and back."""

from benthic.kernels.quantize.op import WeightFormat, hadamard, round_trip_fp4, round_trip_fp8, round_weight

__all__ = ["WeightFormat", "hadamard", "round_trip_fp4", "round_trip_fp8", "round_weight"]
