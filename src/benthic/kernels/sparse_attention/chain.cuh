// The one order of a row's sums. A thread holds rows r, r + 8 and, of each eight columns, two.
#pragma once
#include "products.cuh"
#include "words.cuh"

namespace attention {

// Issues the weighted sum of a block into 2 * N columns.
template <int N>
__device__ __forceinline__ void issue_values(float (&o)[N], uint32_t weights, uint32_t keys) {
  uint64_t a = operand(weights, 16, 1024), b = operand(keys, TILE, 1024);
  asm volatile("" : "+l"(a), "+l"(b));
  wgmma_hold(o);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (N == 128) {
      mma_n128_by_columns(*(float(*)[64])&o[0], a + i * 2, b + i * 128, 1);
      mma_n128_by_columns(*(float(*)[64])&o[64], a + i * 2, b + i * 128 + 2 * (TILE >> 4), 1);
    } else if constexpr (N == 32) {
      mma_n64_by_columns(o, a + i * 2, b + i * 128, 1);
    } else {
      mma_n32_by_columns(o, a + i * 2, b + i * 128, 1);
    }
  }
  wgmma_commit();
}
__device__ __forceinline__ void hide_unseen(float (&s)[32], const int* slots, int lane) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int2 slot = *(const int2*)(slots + 8 * j + (lane & 3) * 2);
    if (slot.x < 0) s[4 * j] = s[4 * j + 2] = -INFINITY;
    if (slot.y < 0) s[4 * j + 1] = s[4 * j + 3] = -INFINITY;
  }
}
__device__ __forceinline__ void maxima_of(const float (&s)[32], float& a, float& b) {
  float u[4] = {s[0], s[1], s[4], s[5]}, v[4] = {s[2], s[3], s[6], s[7]};
#pragma unroll
  for (int j = 2; j < 8; ++j) {
    u[(j & 1) * 2] = fmaxf(u[(j & 1) * 2], s[4 * j]);
    u[(j & 1) * 2 + 1] = fmaxf(u[(j & 1) * 2 + 1], s[4 * j + 1]);
    v[(j & 1) * 2] = fmaxf(v[(j & 1) * 2], s[4 * j + 2]);
    v[(j & 1) * 2 + 1] = fmaxf(v[(j & 1) * 2 + 1], s[4 * j + 3]);
  }
  a = fmaxf(fmaxf(u[0], u[1]), fmaxf(u[2], u[3]));
  b = fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3]));
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    a = fmaxf(a, __shfl_xor_sync(~0u, a, step));
    b = fmaxf(b, __shfl_xor_sync(~0u, b, step));
  }
}
// The reference after block n with maximum `top`, and the factor that takes older sums to it. Units of raw scores.
__device__ __forceinline__ void advance(const Call& call, int n, float top, float old, float& reference,
                                        float& factor) {
  reference = n == 0 ? fmaxf(top, -1e30f) : (top > __fadd_rn(old, call.tolerance) ? top : old);
  factor = (n == 0 || reference == old) ? 1.f : power_of_two(__fmul_rn(__fsub_rn(old, reference), call.scale));
}
// Weights of a block in place of its scores, and the sums of both rows.
__device__ __forceinline__ void weigh(float (&s)[32], float m0, float m1, float scale, float& sum0, float& sum1) {
  const float b0 = __fmul_rn(m0, -scale), b1 = __fmul_rn(m1, -scale);
  float u[4] = {}, v[4] = {};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int k = (j & 1) * 2;
    s[4 * j] = power_of_two(__fmaf_rn(s[4 * j], scale, b0));
    s[4 * j + 1] = power_of_two(__fmaf_rn(s[4 * j + 1], scale, b0));
    s[4 * j + 2] = power_of_two(__fmaf_rn(s[4 * j + 2], scale, b1));
    s[4 * j + 3] = power_of_two(__fmaf_rn(s[4 * j + 3], scale, b1));
    u[k] = __fadd_rn(u[k], s[4 * j]);
    u[k + 1] = __fadd_rn(u[k + 1], s[4 * j + 1]);
    v[k] = __fadd_rn(v[k], s[4 * j + 2]);
    v[k + 1] = __fadd_rn(v[k + 1], s[4 * j + 3]);
  }
  sum0 = __fadd_rn(__fadd_rn(u[0], u[1]), __fadd_rn(u[2], u[3]));
  sum1 = __fadd_rn(__fadd_rn(v[0], v[1]), __fadd_rn(v[2], v[3]));
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    sum0 = __fadd_rn(sum0, __shfl_xor_sync(~0u, sum0, step));
    sum1 = __fadd_rn(sum1, __shfl_xor_sync(~0u, sum1, step));
  }
}
__device__ __forceinline__ void store_weights(const float (&s)[32], uint32_t weights, int r, int lane) {
  uint32_t line = weights + r * 128 + ((r & 7) << 4) + (lane & 3) * 4;
  asm volatile("" : "+r"(line));  // opaque: or eight addresses stay in registers
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    store_4(line ^ (j << 4), two_halves(s[4 * j], s[4 * j + 1]));
    store_4((line ^ (j << 4)) + 1024, two_halves(s[4 * j + 2], s[4 * j + 3]));
  }
}
// Takes a row's sums to a new reference; rare, so products in flight are waited for.
template <int N>
__device__ __forceinline__ void rescale(float (&o)[N], const float* factor, int r) {
  const float a = factor[r], b = factor[r + 8];
  if (__any_sync(~0u, (a != 1.f) | (b != 1.f))) {
    wgmma_wait<0>();
    wgmma_hold(o);
#pragma unroll
    for (int j = 0; j < N / 4; ++j) {
      o[4 * j] *= a;
      o[4 * j + 1] *= a;
      o[4 * j + 2] *= b;
      o[4 * j + 3] *= b;
    }
  }
}

}  // namespace attention
