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
  const float* gamma;          // [R, 64], rows gamma_step apart, to be multiplied by gamma_scale
  const uint8_t* keys;
  const int64_t *queries, *positions, *used, *sequence, *table;
  float* out;  // [tiles, per_tile, (end - first) * 64]
  int num_tiles, per_tile, first, end, pages, page_bits, ratio_bits;  // entries a page, tokens an entry: powers of two
  int64_t gamma_step;
  float gamma_scale;
};

enum Form { FP4, FP8 };

template <Form FORM, int ROWS> struct Shape {
  static constexpr int ROW_BYTES = FORM == FP4 ? 68 : 132;
  static constexpr int STAGE = 2 * BLOCK * ROW_BYTES;
  static constexpr int STAGES = ROWS == 1 ? (FORM == FP4 ? 12 : 9) : (FORM == FP4 ? 9 : 3);
  // A stage is always the same warpgroup's, which therefore sees every phase of its barrier. One that came back to a
  // stage after two of its phases would take the parity of the phase before for its own, and read what is not there.
  static_assert(STAGES % MATH_GROUPS == 0, "warpgroups take units in turn");
};

// Rows of one group as the warpgroups need them; two lie in shared memory at a time.
template <int ROWS> struct alignas(128) Queries {
  uint8_t codes[ROWS][QUERY_BYTES];               // [16 bytes of the reduced dimension][head]
  float weights[ROWS][4 * WEIGHT_STRIDE];         // half of gamma times the head's scale, in the order of summation
  int limit[ROWS], row[ROWS], is_inexact[ROWS];
};

// What is read of single rows while their blocks are counted.
struct Single {
  int limit, row, sequence;
};

template <Form FORM, int ROWS> struct Shared {
  uint8_t keys[Shape<FORM, ROWS>::STAGES][Shape<FORM, ROWS>::STAGE];
  Queries<ROWS> queries[2];
  Single singles[ROWS == 1 ? MAX_GROUPS : 1];
  int before[MAX_GROUPS + 1];  // blocks of the groups before
  int run_begin, run_end, run_group;  // this program's blocks, and the group of the first
  uint32_t warp_sums[THREADS / 32];
  uint64_t full[Shape<FORM, ROWS>::STAGES], empty[Shape<FORM, ROWS>::STAGES], ready[2], done[2];
};

struct Group {
  int tile, first_place, places;
};

template <int ROWS> __device__ __forceinline__ Group group_of(const Work& w, int group) {
  if constexpr (ROWS == 1) return {group, 0, 1};
  const int parts = (w.per_tile + ROWS - 1) / ROWS, tile = group / parts, first = group % parts * ROWS;
  return {tile, first, min(ROWS, w.per_tile - first)};
}

// Entries that a place of a tile sees.
__device__ __forceinline__ int limit_of(const Work& w, int tile, int place) {
  const uint32_t seen = (uint32_t)(w.positions[(int64_t)tile * w.per_tile + place] + 1) >> w.ratio_bits;
  return place < w.used[tile] ? min((int)seen, w.end * BLOCK) : 0;
}

// Most entries that a row of a group sees; by any one thread.
template <Form FORM, int ROWS>
__device__ __forceinline__ int limit_of_group(const Work& w, Shared<FORM, ROWS>& s, int group) {
  if constexpr (ROWS == 1) {
    const Single single{limit_of(w, group, 0), (int)w.queries[group], (int)w.sequence[group]};
    s.singles[group] = single;
    return single.limit;
  } else {
    const Group g = group_of<ROWS>(w, group);
    int limit = 0;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) limit = max(limit, r < g.places ? limit_of(w, g.tile, g.first_place + r) : 0);
    return limit;
  }
}

// This program's share of all blocks: equal runs, the first ones longer by one.
__device__ __forceinline__ int2 run_of(int total) {
  const int each = total / gridDim.x, longer = total % gridDim.x, place = blockIdx.x;
  const int begin = place * each + min(place, longer);
  return make_int2(begin, begin + each + (place < longer));
}

// before[g] for every group and this program's run, by all threads. 2^31 blocks are 2^37 scores.
template <Form FORM, int ROWS>
__device__ __forceinline__ void sum_blocks(const Work& w, Shared<FORM, ROWS>& s, int num_groups) {
  constexpr int EACH = (MAX_GROUPS + THREADS - 1) / THREADS;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first = threadIdx.x * EACH;
  int counts[EACH], sum = 0;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int limit = first + i < num_groups ? limit_of_group<FORM, ROWS>(w, s, first + i) : 0;
    sum += counts[i] = max(0, (limit + BLOCK - 1) / BLOCK - w.first);
  }
  int scan = sum;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, scan, step);
    if (lane >= step) scan += other;
  }
  if (lane == 31) s.warp_sums[warp] = scan;
  __syncthreads();
  const uint32_t of_warp = lane < THREADS / 32 ? s.warp_sums[lane] : 0;
  const int2 run = run_of(__reduce_add_sync(~0u, of_warp));
  int total = __reduce_add_sync(~0u, lane < warp ? of_warp : 0) + scan - sum;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    if (first + i < num_groups) s.before[first + i] = total;
    if (total <= run.x && run.x < total + counts[i]) s.run_group = first + i;
    total += counts[i];
    if (first + i == num_groups - 1) s.before[num_groups] = total;
  }
  if (threadIdx.x == 0) s.run_begin = run.x, s.run_end = run.y;
  __syncthreads();
}

// A program's run of blocks, segment by segment: the part of it that lies in one group.
struct Segment {
  int group, number, first, count;  // `first` counts from the group's first block
};

struct Walk {
  const int* before;
  int begin, end, group, number;

  template <typename Shared> __device__ __forceinline__ explicit Walk(const Shared& s)
      : before(s.before), begin(s.run_begin), end(s.run_end), group(s.run_group - 1), number(-1) {}
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
