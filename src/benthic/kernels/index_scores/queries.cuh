// Queries: bfloat16 to e4m3 under one power of two a head.
#pragma once
#include <cuda_fp16.h>
#include "rows.cuh"

namespace index_scores_of_rows {

// Four values of a head in each lane: their codes, the head's scale, and whether a code differs from its value.
__device__ __forceinline__ uint32_t round_head(uint2 bits, float& scale, bool& differs) {
  const float v[4] = {__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xFFFF0000u),
                      __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xFFFF0000u)};
  float largest = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
  const uint32_t most = __reduce_max_sync(~0u, __float_as_uint(largest));
  // 2^ceil(log2(largest / 448)), 448 = 1.75 * 2^8.
  const int exponent = max((int)(most >> 23) - 8 + ((most & 0x7FFFFFu) > 0x600000u), 1);
  scale = __uint_as_float(exponent << 23);
  const float inverse = __uint_as_float((254 - exponent) << 23);
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const float low = v[i] * inverse, high = v[i + 1] * inverse;
    uint16_t pair;
    uint32_t halves;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
    const float2 back = __half22float2(*reinterpret_cast<__half2*>(&halves));
    differs |= back.x != low || back.y != high;
    codes |= (uint32_t)pair << (8 * i);
  }
  return codes;
}

// The rows of a group, heads `warp`, `warp + warps`, ...; value 32t + 8j + 4u + i of a head goes to byte 4t + i of the
// head's 16 bytes of chunk 2j + u: what a thread's fragment of keys meets, see `load_fp4`.
template <int ROWS>
__device__ __forceinline__ void prepare(const Work& w, int group, Queries<ROWS>& q, int warp, int warps) {
  constexpr int AT_ONCE = 4;
  const Group g = group_of<ROWS>(w, group);
  const int lane = threadIdx.x & 31, total = g.places * HEADS;
  for (int begin = warp; begin < total; begin += AT_ONCE * warps) {
    uint2 bits[AT_ONCE];
    float gamma[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int item = begin + i * warps;
      if (item >= total) break;
      const int64_t row = w.queries[(int64_t)g.tile * w.per_tile + g.first_place + item / HEADS];
      const int64_t head = row * HEADS + item % HEADS;
      bits[i] = __ldg(reinterpret_cast<const uint2*>(w.query + head * DIM) + lane);
      gamma[i] = __ldg(w.gamma + head);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int item = begin + i * warps;
      if (item >= total) break;
      const int r = item / HEADS, h = item % HEADS;
      float scale;
      bool differs = false;
      const uint32_t codes = round_head(bits[i], scale, differs);
      *reinterpret_cast<uint32_t*>(&q.codes[r][(lane & 7) * QUERY_STRIDE + h * 16 + (lane >> 3) * 4]) = codes;
      if (lane == 0) q.weights[r][h % 8 / 2 * WEIGHT_STRIDE + h / 8 * 2 + h % 2] = 0.5f * gamma[i] * scale;
      if (__any_sync(~0u, differs) && lane == 0) q.is_inexact[r] = 1;
    }
  }
}

// Limits of a group's rows, by one warp, before any of its heads is rounded.
template <int ROWS> __device__ __forceinline__ void prepare_limits(const Work& w, int group, Queries<ROWS>& q) {
  const Group g = group_of<ROWS>(w, group);
  const int r = threadIdx.x & 31;
  if (r < ROWS) {
    const bool is_row = r < g.places;
    q.limit[r] = is_row ? limit_of(w, g.tile, g.first_place + r) : 0;
    q.row[r] = is_row ? (int)w.queries[(int64_t)g.tile * w.per_tile + g.first_place + r] : 0;
    q.is_inexact[r] = 0;
  }
}

// A program's first group: by all warps but the one that copies keys.
template <Form FORM, int ROWS>
__device__ __forceinline__ void prepare_first(const Work& w, Shared<FORM, ROWS>& s, int group, int warp) {
  if (warp == 0) prepare_limits<ROWS>(w, group, s.queries[0]);
  named_barrier_sync(1, PREPARING * 32);
  prepare<ROWS>(w, group, s.queries[0], warp, PREPARING);
  fence_proxy_async();
  named_barrier_sync(1, PREPARING * 32);
}

// The groups after it, two buffers in turn.
template <Form FORM, int ROWS>
__device__ __forceinline__ void round_queries(const Work& w, Shared<FORM, ROWS>& s, int num_groups) {
  Walk walk(s.before, num_groups);
  const int warp = (threadIdx.x >> 5) - LOADER - 1;
  for (Segment segment; walk.next(segment);) {
    const int n = segment.number;
    if (n == 0) continue;  // all warps made it
    Queries<ROWS>& q = s.queries[n & 1];
    if (n >= 2) mbarrier_wait(shared_address(&s.done[n & 1]), (n - 2) >> 1 & 1);
    if (warp == 0) prepare_limits<ROWS>(w, segment.group, q);
    named_barrier_sync(2, ROUNDERS * 32);
    prepare<ROWS>(w, segment.group, q, warp, ROUNDERS);
    fence_proxy_async();
    __syncwarp();
    if ((threadIdx.x & 31) == 0) mbarrier_arrive(shared_address(&s.ready[n & 1]));
  }
}

}  // namespace index_scores_of_rows
