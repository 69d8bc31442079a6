// What both kernels of FP8 products share: the tensor core's products, and how gated values are bounded and rounded.
#pragma once
#include <cuda_bf16.h>
#include "hopper.cuh"
#include "rounding.cuh"

// --- e4m3 products of 64 rows x N outputs x 32 of K; both operands in shared memory in 128-byte swizzle
#define PRODUCT(N, A, B, P, REGS, ...) \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N \
               "k32.f32.e4m3.e4m3 {" REGS "}, %" #A ", %" #B ", p, 1, 1;\n}" \
               : __VA_ARGS__ : "l"(a), "l"(b), "r"(adds))

template <int N> __device__ __forceinline__ void product(float (&d)[N / 2], uint64_t a, uint64_t b, int adds) {
  if constexpr (N == 16) PRODUCT(16, 8, 9, 10, "%0, %1, %2, %3, %4, %5, %6, %7", FLOATS(d, 0), FLOATS(d, 4));
  if constexpr (N == 32) PRODUCT(32, 16, 17, 18, REGS_0, FLOATS_16(d, 0));
  if constexpr (N == 64) PRODUCT(64, 32, 33, 34, REGS_0 ", " REGS_16, FLOATS_16(d, 0), FLOATS_16(d, 16));
  if constexpr (N == 96)
    PRODUCT(96, 48, 49, 50, REGS_0 ", " REGS_16 ", " REGS_32,
            FLOATS_16(d, 0), FLOATS_16(d, 16), FLOATS_16(d, 32));
  if constexpr (N == 128)
    PRODUCT(128, 64, 65, 66, REGS_0 ", " REGS_16 ", " REGS_32 ", " REGS_48,
            FLOATS_16(d, 0), FLOATS_16(d, 16), FLOATS_16(d, 32), FLOATS_16(d, 48));
  if constexpr (N == 160)
    PRODUCT(160, 80, 81, 82, REGS_0 ", " REGS_16 ", " REGS_32 ", " REGS_48 ", " REGS_64,
            FLOATS_16(d, 0), FLOATS_16(d, 16), FLOATS_16(d, 32), FLOATS_16(d, 48), FLOATS_16(d, 64));
  if constexpr (N == 192)
    PRODUCT(192, 96, 97, 98, REGS_0 ", " REGS_16 ", " REGS_32 ", " REGS_48 ", " REGS_64 ", " REGS_80,
            FLOATS_16(d, 0), FLOATS_16(d, 16), FLOATS_16(d, 32), FLOATS_16(d, 48), FLOATS_16(d, 64), FLOATS_16(d, 80));
}

// Two neighbouring results of a row, at once where every row begins at an even place; the second may lie outside.
__device__ __forceinline__ void store_pair(void* results, bool is_float, size_t place, float a, float b, bool is_even,
                                           bool has_second) {
  if (is_float) {
    float* y = (float*)results + place;
    if (is_even) *(float2*)y = make_float2(a, b);
    else { y[0] = a; if (has_second) y[1] = b; }
  } else {
    __nv_bfloat16* y = (__nv_bfloat16*)results + place;
    if (is_even) *(__nv_bfloat162*)y = __floats2bfloat162_rn(a, b);
    else { y[0] = __float2bfloat16_rn(a); if (has_second) y[1] = __float2bfloat16_rn(b); }
  }
}

// --- gated values

__device__ __forceinline__ float at_most(float x, float limit) { return x > limit ? limit : x; }
