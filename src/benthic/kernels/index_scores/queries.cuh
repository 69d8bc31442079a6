// Queries: bfloat16 to e4m3 under one power of two a head.
#pragma once
#include <cuda_fp16.h>
#include "rows.cuh"

namespace index_scores_of_rows {

constexpr int HEADS_OF_WARP = 8;  // four threads a head, one group of 32 values each

__device__ __forceinline__ uint32_t largest_pair(uint32_t a, uint32_t b) { return __vmaxu2(a, b); }

// Codes of two bfloat16 values times a power of two; `differs` takes what they miss. float16 holds what e4m3 does, and
// what it flushes itself is below 2^-33 of the head's largest value.
__device__ __forceinline__ uint32_t round_pair(uint32_t bits, float factor, uint32_t& differs) {
  const float low = __uint_as_float(bits << 16) * factor, high = __uint_as_float(bits & 0xFFFF0000u) * factor;
  uint16_t pair;
  uint32_t kept, given;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(kept) : "h"(pair));
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(given) : "f"(high), "f"(low));
  differs |= kept ^ given;
  return pair;
}

struct Head {
  uint4 bits[4];  // 32 values
  float gamma;
};

template <int ROWS> __device__ __forceinline__ void load_head(const Work& w, const Queries<ROWS>& q, int item, Head& x) {
  const int t = threadIdx.x & 3, at = item * HEADS_OF_WARP + (threadIdx.x & 31) / 4;
  const int64_t head = (int64_t)q.row[at / HEADS] * HEADS + at % HEADS;
  const uint4* values = reinterpret_cast<const uint4*>(w.query + head * DIM) + 4 * t;
#pragma unroll
  for (int i = 0; i < 4; ++i) x.bits[i] = __ldg(values + i);
  x.gamma = __fmul_rn(__ldg(w.gamma + (int64_t)q.row[at / HEADS] * w.gamma_step + at % HEADS), w.gamma_scale);
}

// Value 32t + 8j + 4u + i of a head goes to byte 4t + i of the head's 16 bytes of chunk 2j + u: what a thread's
// fragment of keys meets, see `load_fp4`.
template <int ROWS> __device__ __forceinline__ void store_head(Queries<ROWS>& q, int item, const Head& x) {
  const int t = threadIdx.x & 3, at = item * HEADS_OF_WARP + (threadIdx.x & 31) / 4, r = at / HEADS, h = at % HEADS;
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 v = x.bits[i];
    const uint32_t one = largest_pair(v.x & 0x7FFF7FFFu, v.y & 0x7FFF7FFFu);
    most = largest_pair(most, largest_pair(one, largest_pair(v.z & 0x7FFF7FFFu, v.w & 0x7FFF7FFFu)));
  }
  most = max(most >> 16, most & 0xFFFFu);
  most = max(most, __shfl_xor_sync(~0u, most, 1));
  most = max(most, __shfl_xor_sync(~0u, most, 2));
  // 2^ceil(log2(most / 448)), 448 = 1.75 * 2^8.
  const int exponent = max((int)(most >> 7) - 8 + ((most & 0x7Fu) > 0x60u), 1);
  const float factor = __uint_as_float((254 - exponent) << 23);
  uint32_t differs = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 v = x.bits[i];
    const uint32_t first = round_pair(v.x, factor, differs) | round_pair(v.y, factor, differs) << 16;
    const uint32_t second = round_pair(v.z, factor, differs) | round_pair(v.w, factor, differs) << 16;
    uint8_t* target = &q.codes[r][2 * i * QUERY_STRIDE + h * 16 + t * 4];
    *reinterpret_cast<uint32_t*>(target) = first;
    *reinterpret_cast<uint32_t*>(target + QUERY_STRIDE) = second;
  }
  if (differs) q.is_inexact[r] = 1;
  if (t == 0) q.weights[r][h % 8 / 2 * WEIGHT_STRIDE + h / 8 * 2 + h % 2] =
      0.5f * x.gamma * __uint_as_float(exponent << 23);
}

// All heads of a group's rows, by `warps` warps; the next heads are on their way while those before are rounded.
template <int ROWS>
__device__ __forceinline__ void prepare(const Work& w, int group, Queries<ROWS>& q, int warp, int warps) {
  const int total = group_of<ROWS>(w, group).places * (HEADS / HEADS_OF_WARP);
  Head x;
  if (warp < total) load_head(w, q, warp, x);
#pragma unroll 1
  for (int item = warp; item < total; item += warps) {
    Head next = x;
    if (item + warps < total) load_head(w, q, item + warps, next);
    store_head(q, item, x);
    x = next;
  }
}

// Which rows a group has and what they see, by one warp, before any of their heads is rounded.
template <Form FORM, int ROWS>
__device__ __forceinline__ void prepare_rows(const Work& w, const Shared<FORM, ROWS>& s, int group, Queries<ROWS>& q) {
  const int r = threadIdx.x & 31;
  if (r >= ROWS) return;
  q.is_inexact[r] = 0;
  if constexpr (ROWS == 1) {
    q.limit[r] = s.singles[group].limit, q.row[r] = s.singles[group].row;
  } else {
    const Group g = group_of<ROWS>(w, group);
    const bool is_row = r < g.places;
    q.limit[r] = is_row ? limit_of(w, g.tile, g.first_place + r) : 0;
    q.row[r] = is_row ? (int)w.queries[(int64_t)g.tile * w.per_tile + g.first_place + r] : 0;
  }
}

// How many groups all warps but the one that copies keys make ready at first: single rows fill few warps.
template <int ROWS> constexpr int FIRST_GROUPS = ROWS == 1 ? 2 : 1;

// A program's first groups.
template <Form FORM, int ROWS>
__device__ __forceinline__ void prepare_first(const Work& w, Shared<FORM, ROWS>& s, int warp) {
  constexpr int WARPS = (PREPARING + FIRST_GROUPS<ROWS> - 1) / FIRST_GROUPS<ROWS>;
  Walk walk(s);
  Segment segment;
  for (int n = 0; n < FIRST_GROUPS<ROWS> && walk.next(segment); ++n)
    if (warp == n * WARPS) prepare_rows<FORM, ROWS>(w, s, segment.group, s.queries[n]);
  named_barrier_sync(1, PREPARING * 32);
  walk = Walk(s);
  for (int n = 0; n < FIRST_GROUPS<ROWS> && walk.next(segment); ++n)
    if (warp / WARPS == n) prepare<ROWS>(w, segment.group, s.queries[n], warp - n * WARPS,
                                          min(WARPS, PREPARING - n * WARPS));
  fence_proxy_async();
  named_barrier_sync(1, PREPARING * 32);
}

// The groups after them, two buffers in turn.
template <Form FORM, int ROWS>
__device__ __forceinline__ void round_queries(const Work& w, Shared<FORM, ROWS>& s) {
  Walk walk(s);
  const int warp = (threadIdx.x >> 5) - LOADER - 1;
  for (Segment segment; walk.next(segment);) {
    const int n = segment.number;
    if (n < FIRST_GROUPS<ROWS>) continue;
    Queries<ROWS>& q = s.queries[n & 1];
    if (n >= 2) mbarrier_wait(shared_address(&s.done[n & 1]), (n - 2) >> 1 & 1);
    if (warp == 0) prepare_rows<FORM, ROWS>(w, s, segment.group, q);
    named_barrier_sync(2, ROUNDERS * 32);
    prepare<ROWS>(w, segment.group, q, warp, ROUNDERS);
    fence_proxy_async();
    __syncwarp();
    if ((threadIdx.x & 31) == 0) mbarrier_arrive(shared_address(&s.ready[n & 1]));
  }
}

}  // namespace index_scores_of_rows
