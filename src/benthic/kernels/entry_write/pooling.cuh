// The softmax-weighted sum of one channel over a block's rows, a run of 32 at a time under a running maximum.
//
// The order is that of `compress_kv` by Triton: of a run, rows of one remainder by four are added in order, then the four
// parts in pairs; runs are folded in order. Nothing is fused but what is spelled out. Host code too, so that the order can
// be tried without a GPU.
#pragma once
#include <cmath>
#include <cstdint>

namespace compress {

constexpr int RUN = 32, PARTS = 4;

#ifdef __CUDA_ARCH__
__device__ __forceinline__ float added(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float quotient(float a, float b) {
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
#define COMPRESS_BOTH __host__ __device__ __forceinline__
#else
// Compiled without contraction (-ffp-contract=off).
inline float added(float a, float b) { return a + b; }
inline float times(float a, float b) { return a * b; }
inline float fused(float a, float b, float c) { return std::fma(a, b, c); }
inline float power_of_two(float x) { return std::exp2(x); }
inline float quotient(float a, float b) { return a / b; }
#ifdef __CUDACC__
#define COMPRESS_BOTH __host__ __device__ __forceinline__
#else
#define COMPRESS_BOTH inline
#endif
#endif

// e^x as Triton computes it.
COMPRESS_BOTH float exponential(float x) { return power_of_two(times(x, 1.4426950408889634f)); }

// Weight and weighted sum of one run, in parts.
struct Parts {
  float total[PARTS], mixed[PARTS];
};

// Row `row` of a run. Rows come in order; the first of each part begins it.
COMPRESS_BOTH void add_row(Parts& parts, int row, float gate, float value, float top) {
  const float weight = exponential(added(gate, -top)), share = times(weight, value);
  const int part = row % PARTS;
  parts.total[part] = row < PARTS ? weight : added(parts.total[part], weight);
  parts.mixed[part] = row < PARTS ? share : added(parts.mixed[part], share);
}

COMPRESS_BOTH float sum_of(const float (&part)[PARTS]) { return added(added(part[0], part[2]), added(part[1], part[3])); }

// What all runs so far amount to.
struct Running {
  float top, total, mixed;
};

COMPRESS_BOTH Running nothing() { return {-INFINITY, 0.0f, 0.0f}; }

// One more run, whose rows were weighed under `top`, the maximum with those before.
COMPRESS_BOTH void fold(Running& sum, float top, float total, float mixed) {
  const float fade = exponential(added(sum.top, -top));
  sum.total = fused(sum.total, fade, total);
  sum.mixed = fused(sum.mixed, fade, mixed);
  sum.top = top;
}

}  // namespace compress
