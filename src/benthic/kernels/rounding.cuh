// Scales of rows in FP8.
#pragma once
#include <cstdint>

// 2^ceil(log2(amax / 448)) by its bits, as quantize_rows has it; NaN where a value is not finite.
__device__ __forceinline__ float power_of_two_scale(int amax_bits) {
  if (amax_bits >= 0x7F800000) return __int_as_float(0x7FFFFFFF);
  const uint32_t bits = __float_as_uint(fmaxf(__int_as_float(amax_bits), 1e-4f) * (1.f / 448.f));
  return __uint_as_float(((bits >> 23) + ((bits & 0x7FFFFF) != 0)) << 23);
}
