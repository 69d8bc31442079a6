// Which rows a program scores, against which blocks of keys, and what its warps share.
#pragma once
#include <cuda_bf16.h>
#include "../hopper.cuh"

namespace index_scores_of_rows {
using namespace hopper;

constexpr int HEADS = 64, DIM = 128, BLOCK = 64;
constexpr int MATH_GROUPS = 3, MATH_WARPS = 4 * MATH_GROUPS, THREADS = 128 * (MATH_GROUPS + 1);
constexpr int LOADER = MATH_WARPS, ROUNDERS = 3, PREPARING = THREADS / 32 - 1;
constexpr int MAX_GROUPS = 1024;
constexpr int QUERY_BYTES = HEADS * DIM, QUERY_STRIDE = HEADS * 16, WEIGHT_STRIDE = 20;
constexpr int WIDEST = 11;  // exponents below the largest that the table reaches

struct Work {
  const __nv_bfloat16* query;  // [R, 64, 128]
  const float* gamma;          // [R, 64]
  const uint8_t* keys;
  const int64_t *queries, *positions, *used, *sequence, *table;
  float* out;  // [tiles, per_tile, (end - first) * 64]
  int num_tiles, per_tile, first, end, pages, page, ratio;
};

enum Form { FP4, FP8 };

template <Form FORM, int ROWS> struct Shape {
  static constexpr int ROW_BYTES = FORM == FP4 ? 68 : 132;
  static constexpr int STAGE = 2 * BLOCK * ROW_BYTES;
  static constexpr int STAGES = ROWS == 1 ? (FORM == FP4 ? 12 : 8) : (FORM == FP4 ? 8 : 4);
};

// Rows of one group as the warpgroups need them; two lie in shared memory at a time.
template <int ROWS> struct alignas(128) Queries {
  uint8_t codes[ROWS][QUERY_BYTES];               // [16 bytes of the reduced dimension][head]
  float weights[ROWS][4 * WEIGHT_STRIDE];         // half of gamma times the head's scale, in the order of summation
  int limit[ROWS], row[ROWS], is_inexact[ROWS];
};

template <Form FORM, int ROWS> struct Shared {
  uint8_t keys[Shape<FORM, ROWS>::STAGES][Shape<FORM, ROWS>::STAGE];
  Queries<ROWS> queries[2];
  int before[MAX_GROUPS + 1];  // blocks of the groups before
  uint32_t warp_sums[THREADS / 32];
  uint64_t full[Shape<FORM, ROWS>::STAGES], empty[Shape<FORM, ROWS>::STAGES], ready[2], done[2];
};

struct Group {
  int tile, first_place, places;
};

template <int ROWS> __device__ __forceinline__ Group group_of(const Work& w, int group) {
  const int parts = (w.per_tile + ROWS - 1) / ROWS, tile = group / parts, first = group % parts * ROWS;
  return {tile, first, min(ROWS, w.per_tile - first)};
}

// Entries that a place of a tile sees.
__device__ __forceinline__ int limit_of(const Work& w, int tile, int place) {
  const uint32_t seen = (uint32_t)(w.positions[(int64_t)tile * w.per_tile + place] + 1) / (uint32_t)w.ratio;
  return place < w.used[tile] ? min((int)seen, w.end * BLOCK) : 0;
}

template <int ROWS> __device__ __forceinline__ int blocks_of(const Work& w, int group) {
  const Group g = group_of<ROWS>(w, group);
  int limit = 0;
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
    if (r < g.places) limit = max(limit, limit_of(w, g.tile, g.first_place + r));
  return max(0, (limit + BLOCK - 1) / BLOCK - w.first);
}

// before[g] for every group, by all threads.
template <int ROWS> __device__ void sum_blocks(const Work& w, int num_groups, int* before, uint32_t* warp_sums) {
  constexpr int EACH = (MAX_GROUPS + THREADS - 1) / THREADS;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first = threadIdx.x * EACH;
  int counts[EACH], sum = 0;
#pragma unroll
  for (int i = 0; i < EACH; ++i) sum += counts[i] = first + i < num_groups ? blocks_of<ROWS>(w, first + i) : 0;
  int scan = sum;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, scan, step);
    if (lane >= step) scan += other;
  }
  if (lane == 31) warp_sums[warp] = scan;
  __syncthreads();
  int total = __reduce_add_sync(~0u, lane < warp ? warp_sums[lane] : 0) + scan - sum;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    if (first + i < num_groups) before[first + i] = total;
    total += counts[i];
    if (first + i == num_groups - 1) before[num_groups] = total;
  }
  __syncthreads();
}

// A program's run of blocks, segment by segment: the part of it that lies in one group.
struct Segment {
  int group, number, first, count;  // `first` counts from the group's first block
};

struct Walk {
  const int* before;
  int begin, end, group, number;

  __device__ Walk(const int* sums, int num_groups) : before(sums), number(-1) {
    const int64_t total = before[num_groups];
    begin = (int)(total * blockIdx.x / gridDim.x), end = (int)(total * (blockIdx.x + 1) / gridDim.x);
    int low = 0, high = num_groups;  // the last group that starts at or before `begin`
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (before[middle] <= begin) low = middle;
      else high = middle;
    }
    group = low - 1;
  }
  __device__ bool next(Segment& s) {
    do {
      ++group;
      if (begin >= end) return false;
    } while (before[group + 1] <= begin);
    const int stop = min(end, before[group + 1]);
    s = {group, ++number, begin - before[group], stop - begin};
    begin = stop;
    return true;
  }
};

}  // namespace index_scores_of_rows
