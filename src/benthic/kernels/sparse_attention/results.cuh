// What leaves a program: the divided and rounded result, turned back if asked, or a chunk's partial one.
#pragma once
#include "chain.cuh"

namespace attention {

__device__ __forceinline__ float sink_weight(float sink, float reference, float scale) {
  return power_of_two(__fmaf_rn(sink, LOG2_E, __fmul_rn(reference, -scale)));
}
__device__ __forceinline__ uint32_t rounded(float a, float b) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
  return *(const uint32_t*)&v;
}
// Turns a rotary pair back by its row's angle, as `apply_rope` does to the rounded result.
__device__ __forceinline__ uint32_t turned_back(uint32_t pair, float cosine, float sine) {
  const float a = __uint_as_float(pair << 16), b = __uint_as_float(pair & 0xffff0000u);
  return rounded(__fmaf_rn(a, cosine, __fmul_rn(b, sine)), __fmaf_rn(a, -sine, __fmul_rn(b, cosine)));
}
// Eight columns `column` .. of rows r and r + 8, divided and rounded, in the order of the result.
__device__ __forceinline__ void finish(const Call& call, int query, const float* o, float i0, float i1, int column,
                                       int lane, uint32_t& a, uint32_t& b) {
  a = rounded(__fmul_rn(o[0], i0), __fmul_rn(o[1], i0));
  b = rounded(__fmul_rn(o[2], i1), __fmul_rn(o[3], i1));
  if (column < CODES) {
    reorder(a, b, lane);
  } else if (call.cosine != nullptr) {
    const size_t pair = (size_t)query * 32 + (column - CODES) / 2 + (lane & 3);
    const float cosine = __ldg(call.cosine + pair), sine = __ldg(call.sine + pair);
    a = turned_back(a, cosine, sine);
    b = turned_back(b, cosine, sine);
  }
}
// Final reference and sum of a thread's rows r and r + 8.
struct Ends {
  float m0, m1, l0, l1;
};
// Writes 2 * N columns from `column` on of a warpgroup's 64 heads: the result, or a chunk's partial one.
template <int N>
__device__ __forceinline__ void write(const Call& call, const Item& item, float (&o)[N], int column, const Ends& ends) {
  const int thread = threadIdx.x & 127, lane = thread & 31, r = (thread >> 5) * 16 + (lane >> 2);
  if (item.chunks > 1) {
    float4* target = (float4*)call.partials + (size_t)item.number * 8192;
#pragma unroll
    for (int j = 0; j < N / 4; ++j)
      target[(column / 8 + j) * 128 + thread] = make_float4(o[4 * j], o[4 * j + 1], o[4 * j + 2], o[4 * j + 3]);
    if (column == 0 && (lane & 3) == 0) {
      float* sums = call.sums + (size_t)item.number * 128;
      sums[r] = ends.m0, sums[r + 8] = ends.m1, sums[64 + r] = ends.l0, sums[72 + r] = ends.l1;
    }
    return;
  }
  const int unit = item.number / call.most_chunks, groups = call.heads / 64;
  const int head = unit % groups * 64 + r;
  const float i0 = __frcp_rn(__fadd_rn(ends.l0, sink_weight(call.sink[head], ends.m0, call.scale)));
  const float i1 = __frcp_rn(__fadd_rn(ends.l1, sink_weight(call.sink[head + 8], ends.m1, call.scale)));
  __nv_bfloat16* target = call.out + ((size_t)(call.first + unit / groups) * call.heads + head) * DIM + column;
#pragma unroll
  for (int j = 0; j < N / 4; j += 4) {
    uint32_t a[4], b[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      finish(call, item.query, o + 4 * (j + i), i0, i1, column + 8 * (j + i), lane, a[i], b[i]);
    *(uint4*)(target + (j + (lane & 3)) * 8) = gather_line(a, lane);
    *(uint4*)(target + 8 * DIM + (j + (lane & 3)) * 8) = gather_line(b, lane);
  }
}

}  // namespace attention
