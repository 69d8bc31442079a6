// Products of rows and weights in FP8, y = x W^T, dense or grouped by expert.
//
// Order, for every shape of tile and every number of rows: from acc = 0, for each 128 of K ascending,
//   acc = fma(d, row scale * tile scale, acc)     d: one chain of four e4m3 wgmma over these 128, in float32
// then, if outputs have scales of their own, acc * base[o]; rounded once. A weight without tile scales has 1 for them.
// Neither the width N of a wgmma nor the rows beside a row change d's bits (tested), so tiles are free.
//
// One producer warp copies boxes of x and W into a ring by TMA; consumer warpgroups multiply and promote. A tile of W
// is BN outputs; a tile of x is BM rows, of which only boxes that hold rows are copied: what stands in the others'
// place meets no stored row. Blocks are persistent and walk the tiles of all experts.
#include <cuda_bf16.h>
#include "hopper.cuh"
#include "products.cuh"

using namespace hopper;

// --- the work

struct Problem {
  const float* row_scale;   // [rows, steps]
  const float* tile_scale;  // [groups, ceil(outputs / 128), steps] or null
  const float* base;        // [groups, outputs] or null
  const int* ends;          // [groups], or null for one group of all rows
  void* y;                  // [rows, outputs], bfloat16 or float32
  int rows, outputs, steps, groups;
  int stages;               // of the ring
  int box_rows, stage_rows; // rows of x a copy and a stage
  int is_float, is_copied;  // y's type; whole blocks of y leave by TMA
  int band;                 // row tiles that share weights while these are in the second-level cache
  int is_streamed;          // every weight is read once
  // What follows a gated product: y = FP8 of silu(min(gate, limit)) * clamp(up) * row_weight[picks[row]].
  const float* row_weight;
  const int* picks;
  float* y_scale;           // [rows, outputs / 256]
  float limit;
};

// What all threads of a warp have alike. Only where ptxas knows every branch around a loop to be of that kind (a vote,
// this) does it keep addresses and descriptors in uniform registers; products wait for each that it has to move there.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(~0u, x, 0); }

struct Tile {
  int group, row, end, output;  // rows row .. end - 1 of the group; first output
};

// WM x WN consumer warpgroups, each of MB blocks of 64 rows by N outputs; DEPTH products of 128 K in flight. The blocks
// of a cluster share x (neighbouring outputs) or W (neighbouring rows): each copies its part to all.
template <int WM_, int WN_, int MB_, int N_, int DEPTH_, int CLUSTER_ROWS_ = 1, int CLUSTER_OUTPUTS_ = 1,
          bool GATED_ = false>
struct Shape {
  static constexpr bool GATED = GATED_;
  static constexpr int CLUSTER_ROWS = CLUSTER_ROWS_, CLUSTER_OUTPUTS = CLUSTER_OUTPUTS_;
  static constexpr int CLUSTER = CLUSTER_ROWS * CLUSTER_OUTPUTS;
  static constexpr int WM = WM_, WN = WN_, MB = MB_, N = N_, DEPTH = DEPTH_;
  static constexpr int BM = 64 * WM * MB, BN = N * WN, GROUPS = WM * WN, THREADS = 128 * GROUPS + 128;
  static constexpr bool IS_LARGE = N >= 128 && GROUPS == 2;  // most registers to the consumers, y staged for TMA
  static constexpr bool STRADDLES = N > 128 || 128 % N != 0 || GATED;  // a tile's outputs lie in two 128s
  static constexpr bool CAN_COPY = IS_LARGE && N % 64 == 0 && !GATED;
  static constexpr int STAGING = GATED ? BM * (BN / 2 + 4 * WN) : CAN_COPY ? GROUPS * MB * 64 * N * 2 : 0;
};

// Tiles of this block, in order: of each group its bands of row tiles, each band output tile by output tile. The blocks
// of a cluster take neighbouring tiles, of the same rows or of the same outputs; some may have none of either.
template <class S> struct Tiles {
  static constexpr int BM = S::BM * S::CLUSTER_ROWS, BN = S::BN * S::CLUSTER_OUTPUTS;
  const Problem& p;
  const int rank;
  int next, before = 0, group = 0, start = 0, end, after;
  __device__ Tiles(const Problem& problem, int rank_) : p(problem), rank(rank_), next(blockIdx.x / S::CLUSTER) {
    end = p.ends ? p.ends[0] : p.rows;
    after = p.groups > 1 ? p.ends[1] : end;  // read a group ahead
  }
  __device__ bool get(Tile& tile) {
    const int columns = (p.outputs + BN - 1) / BN;
    int bands = (end - start + BM - 1) / BM;
    while (next - before >= bands * columns) {
      before += bands * columns;
      if (++group == p.groups) return false;
      start = end;
      end = after;
      if (group + 1 < p.groups) after = p.ends[group + 1];
      bands = (end - start + BM - 1) / BM;
    }
    const int place = next - before, first = place / (p.band * columns) * p.band;
    const int height = min(bands - first, p.band), inside = place - first * columns;
    tile = {group, start + (first + inside % height) * BM, end, inside / height * BN};
    if constexpr (S::CLUSTER_ROWS > 1) tile.row += rank * S::BM;
    if constexpr (S::CLUSTER_OUTPUTS > 1) tile.output += rank * S::BN;
    next += gridDim.x / S::CLUSTER;
    return true;
  }
};

struct Ring {
  uint32_t x, w, scales, full, empty, x_bytes, w_bytes, scale_bytes;
  int stages, stage = 0;
  uint32_t phase = 0;
  __device__ void advance() {
    if (++stage == stages) { stage = 0; phase ^= 1; }
  }
  __device__ Ring at(int other) const {
    Ring ring = *this;
    ring.stage = other;
    return ring;
  }
  __device__ uint32_t x_at() const { return x + stage * x_bytes; }
  __device__ uint32_t w_at() const { return w + stage * w_bytes; }
  // The row scales of one step, then the tile scales of both 128s of the tile's outputs.
  __device__ uint32_t scales_at() const { return scales + stage * scale_bytes; }
  __device__ uint32_t full_at() const { return full + 8 * stage; }
  __device__ uint32_t empty_at() const { return empty + 8 * stage; }
};

template <class S>
__device__ __forceinline__ void produce(const CUtensorMap& x_map, const CUtensorMap& w_map, const Problem& p,
                                        Ring ring) {
  const uint64_t policy = evict_first_policy();
  const int rank = S::CLUSTER > 1 ? cluster_rank() : 0;
  constexpr uint16_t ALL = (1 << S::CLUSTER) - 1;
  auto load_w = [&](const Tile& t, int k) {
    const int row = t.group * p.outputs + t.output;
    if constexpr (S::CLUSTER_ROWS > 1) {
      const int part = rank * (S::BN / S::CLUSTER);
      tensor_load_multicast(ring.w_at() + part * 128, w_map, k * 128, row + part, ring.full_at(), ALL);
    } else if (p.is_streamed) {
      tensor_load(ring.w_at(), w_map, k * 128, row, ring.full_at(), policy);
    } else {
      tensor_load(ring.w_at(), w_map, k * 128, row, ring.full_at());
    }
  };
  int boxes;  // of x in this tile
  uint32_t bytes;
  auto measure = [&](const Tile& t) {
    boxes = (max(min(t.end - t.row, S::BM), 0) + p.box_rows - 1) / p.box_rows;
    bytes = ring.w_bytes + (S::CLUSTER_OUTPUTS > 1 ? p.stage_rows : boxes * p.box_rows) * 128;
  };
  auto load_x = [&](const Tile& t, int k) {
    if constexpr (S::CLUSTER_OUTPUTS > 1) {
      const int part = rank * p.box_rows;
      tensor_load_multicast(ring.x_at() + part * 128, x_map, k * 128, t.row + part, ring.full_at(), ALL);
    } else {
      for (int i = 0; i < boxes; ++i)
        tensor_load(ring.x_at() + i * p.box_rows * 128, x_map, k * 128, t.row + i * p.box_rows, ring.full_at());
    }
  };
  Tile tile;
  int ahead = 0;
  if (!p.ends) {  // weights of the first ring do not wait for the kernel before
    Tiles<S> first(p, rank);
    if (first.get(tile)) {
      Ring start = ring;
      measure(tile);
      for (; ahead < min(ring.stages, p.steps); ++ahead, ring.advance()) {
        mbarrier_arrive_expect(ring.full_at(), bytes);
        load_w(tile, ahead);
      }
      ring = start;
    }
  }
  grid_dependency_wait();
  for (Tiles<S> tiles(p, rank); tiles.get(tile); ahead = 0) {
    measure(tile);
    for (int k = 0; k < p.steps; ++k, ring.advance()) {
      if (k >= ahead) {
        mbarrier_wait(ring.empty_at(), ring.phase ^ 1);
        mbarrier_arrive_expect(ring.full_at(), bytes);
        load_w(tile, k);
      }
      load_x(tile, k);
    }
  }
}

// Three warps copy the scales of each stage's step, one row a thread and turn.
constexpr int COPIERS = 96;

template <class S> __device__ __forceinline__ void produce_scales(const Problem& p, Ring ring, int thread) {
  grid_dependency_wait();
  const int blocks = (p.outputs + 127) / 128;
  Tile tile;
  for (Tiles<S> tiles(p, S::CLUSTER > 1 ? cluster_rank() : 0); tiles.get(tile);) {
    const int rows = min(tile.end - tile.row, S::BM), block = min(tile.output / (S::GATED ? 256 : 128), blocks - 1);
    const int next = S::GATED ? block + blocks / 2 : min(block + 1, blocks - 1);
    const float* row_scale = p.row_scale + (size_t)tile.row * p.steps;
    const float* tile_scale = p.tile_scale + (size_t)tile.group * blocks * p.steps;
    for (int k = 0; k < p.steps; ++k, ring.advance()) {
      mbarrier_wait(ring.empty_at(), ring.phase ^ 1);
      for (int r = thread; r < rows; r += COPIERS) copy_float(ring.scales_at() + 4 * r, row_scale + r * p.steps + k);
      if (p.tile_scale && thread >= COPIERS - 2)
        copy_float(ring.scales_at() + 4 * (S::BM + COPIERS - 1 - thread),
                   tile_scale + (thread == COPIERS - 1 ? block : next) * p.steps + k);
      arrive_when_copied(ring.full_at());
    }
  }
}

// The scales of one step for a thread's rows (g and g + 8 of each block) and for both 128s of its outputs.
template <class S> struct Scales {
  float row[S::MB][2], tile[2];
  __device__ void read(uint32_t rows_at, uint32_t tiles_at, int block, bool has_tiles) {
#pragma unroll
    for (int m = 0; m < S::MB; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) row[m][h] = load_shared(rows_at + 4 * (64 * m + 8 * h));
    tile[0] = has_tiles ? load_shared(tiles_at + 4 * block) : 1.f;
    if constexpr (S::STRADDLES) tile[1] = has_tiles ? load_shared(tiles_at + 4) : 1.f;
  }
};

// The halves of wgmma_swizzled: the low one is 32-bit arithmetic, the high one a constant.
__device__ __forceinline__ uint32_t low(uint32_t address) { return (address >> 4) + 0x10000; }
__device__ __forceinline__ uint64_t descriptor(uint32_t low_half) { return (uint64_t)0x40000040 << 32 | low_half; }

template <int N>
__device__ __forceinline__ void multiply_step(float (&d)[N / 2], uint32_t x, uint32_t w) {
  wgmma_hold(d);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) product<N>(d, descriptor(x + 2 * k), descriptor(w + 2 * k), k > 0);
  wgmma_commit();
}

// `boundary`: the first of the tile's outputs that belongs to its second 128.
template <class S>
__device__ __forceinline__ void promote(float (&acc)[S::N / 2], float (&d)[S::N / 2], const Scales<S>& s, int m,
                                        int boundary) {
  wgmma_hold(d);
  const float near[2] = {s.row[m][0] * s.tile[0], s.row[m][1] * s.tile[0]};
  float far[2] = {near[0], near[1]};
  if constexpr (S::STRADDLES) { far[0] = s.row[m][0] * s.tile[1]; far[1] = s.row[m][1] * s.tile[1]; }
#pragma unroll
  for (int n = 0; n < S::N / 8; ++n) {
    const bool is_far = S::GATED ? n % 2 : S::STRADDLES && n / 4 * 32 >= boundary;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      acc[4 * n + j] = __fmaf_rn(d[4 * n + j], is_far ? far[j / 2] : near[j / 2], acc[4 * n + j]);
  }
}

template <int N>
__device__ __forceinline__ void scale_outputs(float (&acc)[N / 2], const Problem& p, int group, int output) {
#pragma unroll
  for (int n = 0; n < N / 8; ++n)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int o = output + 8 * n + j;
      const float base = o < p.outputs ? p.base[(size_t)group * p.outputs + o] : 0.f;
      acc[4 * n + j] *= base;
      acc[4 * n + 2 + j] *= base;
    }
}

// Every thread stores its own pairs: row g or g + 8, outputs 2t and 2t + 1 of each 8.
template <int N>
__device__ __forceinline__ void store_pairs(const Problem& p, const float (&acc)[N / 2], int row, int end, int output) {
  const bool is_even = p.outputs % 2 == 0;
#pragma unroll
  for (int n = 0; n < N / 8; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = row + 8 * h, o = output + 8 * n;
      if (r >= end || o >= p.outputs) continue;
      const float a = acc[4 * n + 2 * h], b = acc[4 * n + 2 * h + 1];
      const bool has_second = o + 1 < p.outputs;
      store_pair(p.y, p.is_float, (size_t)r * p.outputs + o, a, b, is_even, has_second);
    }
}

// 64 x N results in bfloat16 through shared memory, 64 outputs a box in 128-byte swizzle. `is_reused`: a tile's first
// block, which waits until the tile before is copied. Each block of a tile has a place of its own: the copy engine does
// loads that were asked for earlier first, so waiting for a block just given to it takes microseconds.
template <int N>
__device__ __forceinline__ void copy_block(const CUtensorMap& y_map, const float (&acc)[N / 2], uint32_t staging,
                                           int row, int output, int barrier, bool is_first, bool is_reused, int warp,
                                           int lane) {
  if (is_reused) {
    if (is_first) bulk_wait_read<0>();
    named_barrier_sync(barrier, 128);
  }
  const int r = 16 * warp + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
  for (int n = 0; n < N / 8; n += 2) {
    uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(acc[4 * n + 2 * i], acc[4 * n + 2 * i + 1]);
      v[i] = *(const uint32_t*)&pair;
    }
    const int column = n + lane / 16;
    const uint32_t at = staging + column / 8 * 8192 + r * 128 + ((column % 8 ^ r % 8) << 4);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
  }
  fence_proxy_async();
  named_barrier_sync(barrier, 128);
  if (is_first) {
#pragma unroll
    for (int c = 0; c < N / 64; ++c) tensor_store(y_map, staging + c * 8192, output + 64 * c, row);
    bulk_commit();
  }
}

// a / b as the language has it, where |a| is in 2^-50 .. 2^100 and b in 1 .. 2^50: the same Newton steps without the
// branch for what they do not reach, so that several divisions go side by side.
__device__ __forceinline__ float quotient(float a, float b) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b));
  inverse = __fmaf_rn(inverse, __fmaf_rn(-b, inverse, 1.f), inverse);
  float value = __fmul_rn(a, inverse);
  value = __fmaf_rn(inverse, __fmaf_rn(-b, value, a), value);
  return __fmaf_rn(inverse, __fmaf_rn(-b, value, a), value);
}

// x / (1 + exp(-x)) of each value.
template <int N> __device__ __forceinline__ void silu(float (&x)[N]) {
  float below[N];
  bool is_far = false;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    below[i] = 1.f + expf(-x[i]);
    is_far |= !(fabsf(x[i]) >= 0x1p-50f && fabsf(x[i]) <= 0x1p100f && below[i] <= 0x1p50f);
  }
  if (__any_sync(~0u, is_far)) {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = x[i] / below[i];
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = quotient(x[i], below[i]);
  }
}

// Outputs come in eights of gate and eights of up; a tile's 256 are 128 columns of y, which share a scale a row. Codes
// are gathered in `staging` [BM rows][128], maxima [WN][BM] behind them.
template <class S>
__device__ __forceinline__ void store_gated(const Problem& p, float (&acc)[S::MB][S::N / 2], const Tile& tile,
                                            uint8_t* staging, int wn, int thread_row, int lane) {
  static_assert(!S::GATED || (S::WM == 1 && S::BN == 256), "a block has all columns of a scale, each thread its rows");
  const int columns = p.outputs / 2, column = tile.output / 2 + wn * S::N / 2 + lane % 4 * 2;
  int* maxima = (int*)(staging + S::BM * 128);
#pragma unroll
  for (int m = 0; m < S::MB; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = thread_row + 64 * m + 8 * h;
      const bool is_row = tile.row + row < tile.end;
      float weight = 1.f;
      if (is_row && p.row_weight) weight = p.row_weight[p.picks ? p.picks[tile.row + row] : tile.row + row];
      float gates[S::N / 8];
#pragma unroll
      for (int q = 0; q < S::N / 16; ++q)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float gate = acc[m][8 * q + 2 * h + j], up = acc[m][8 * q + 4 + 2 * h + j];
          if (p.base) {
            const float* base = p.base + (size_t)tile.group * p.outputs + column + 8 * q + j;
            gate *= base[0];
            up *= base[columns];
          }
          gates[2 * q + j] = at_most(gate, p.limit);
          acc[m][8 * q + 4 + 2 * h + j] = -at_most(-at_most(up, p.limit), p.limit);
        }
      silu(gates);
      int most = 0;
#pragma unroll
      for (int q = 0; q < S::N / 16; ++q)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float value = is_row ? gates[2 * q + j] * acc[m][8 * q + 4 + 2 * h + j] * weight : 0.f;
          acc[m][8 * q + 2 * h + j] = value;
          most = max(most, __float_as_int(fabsf(value)));
        }
      most = max(most, __shfl_xor_sync(~0u, most, 1));
      most = max(most, __shfl_xor_sync(~0u, most, 2));
      if (lane % 4 == 0) maxima[wn * S::BM + row] = most;
    }
  named_barrier_sync(3, 128 * S::GROUPS);
#pragma unroll
  for (int m = 0; m < S::MB; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = thread_row + 64 * m + 8 * h;
      const float scale = power_of_two_scale(max(maxima[row], maxima[S::BM + row]));
      // 1 / scale, which is a power of two too (2^-22 .. 2^120) or NaN; a product with it is the quotient.
      const float inverse = scale == scale ? __uint_as_float((254u << 23) - __float_as_uint(scale)) : scale;
      if (wn == 0 && lane % 4 == 0 && tile.row + row < tile.end)
        p.y_scale[(size_t)(tile.row + row) * (columns / 128) + tile.output / 256] = scale;
#pragma unroll
      for (int q = 0; q < S::N / 16; ++q) {
        uint16_t pair;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
            : "=h"(pair) : "f"(acc[m][8 * q + 2 * h + 1] * inverse), "f"(acc[m][8 * q + 2 * h] * inverse));
        const int at = wn * S::N / 2 + 8 * q + lane % 4 * 2;
        *(uint16_t*)(staging + row * 128 + ((at / 16 ^ row % 8) << 4) + at % 16) = pair;
      }
    }
  named_barrier_sync(3, 128 * S::GROUPS);
  for (int i = threadIdx.x; i < S::BM * 8; i += 128 * S::GROUPS) {
    const int row = i / 8, chunk = i % 8;
    if (tile.row + row < tile.end)
      *(uint4*)((uint8_t*)p.y + (size_t)(tile.row + row) * columns + tile.output / 2 + chunk * 16) =
          *(const uint4*)(staging + row * 128 + ((chunk ^ row % 8) << 4));
  }
}

// Until at most `pending` < 4 groups of products are in flight; `pending` is known where this is inlined.
__device__ __forceinline__ void wait_for(int pending) {
  if (pending == 3) wgmma_wait<3>();
  if (pending == 2) wgmma_wait<2>();
  if (pending == 1) wgmma_wait<1>();
  if (pending == 0) wgmma_wait<0>();
}

// Whether the phase is over; does not wait.
__device__ __forceinline__ bool is_complete(uint32_t barrier, uint32_t parity) {
  uint32_t is_over;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
      : "=r"(is_over) : "r"(barrier), "r"(parity) : "memory");
  return is_over;
}

// A stage is free when every block that it was copied from may write it again.
template <class S> __device__ __forceinline__ void release(uint32_t empty, int lane) {
  if constexpr (S::CLUSTER > 1) {
    if (lane < S::CLUSTER) mbarrier_arrive_at(empty, lane);
  } else {
    if (lane == 0) mbarrier_arrive(empty);
  }
}

template <class S>
__device__ __forceinline__ void consume(const CUtensorMap& y_map, const Problem& p, Ring ring, uint8_t* shared) {
  const int group = uniform(threadIdx.x / 128), warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int row_in_tile = group % S::WM * S::MB * 64, output_in_tile = group / S::WM * S::N;
  const int thread_row = row_in_tile + 16 * warp + lane / 4;
  const bool is_first = threadIdx.x % 128 == 0;
  const int rank = S::CLUSTER > 1 ? cluster_rank() : 0;
  const uint32_t staging = shared_address(shared) + group * S::MB * 64 * S::N * 2;
  grid_dependency_wait();
  float acc[S::MB][S::N / 2], d[S::DEPTH][S::N / 2];
#pragma unroll
  for (int i = 0; i < S::DEPTH; ++i)
#pragma unroll
    for (int j = 0; j < S::N / 2; ++j) d[i][j] = 0.f;
  bool is_full = false;  // the next stage, asked before the last promotion of a step, which hides the answer's time
  Tile tile;
  for (Tiles<S> tiles(p, rank); __any_sync(~0u, tiles.get(tile));) {
    const int output = tile.output + output_in_tile, boundary = 128 - output % 128;
    // Of tiles over two whole 128s, the second half's warpgroup has the second scale.
    const int block = !S::STRADDLES && S::BN > 128 ? output_in_tile / 128 : 0;
    const bool has_tiles = p.tile_scale != nullptr;
#pragma unroll
    for (int m = 0; m < S::MB; ++m)
#pragma unroll
      for (int j = 0; j < S::N / 2; ++j) acc[m][j] = 0.f;
    if constexpr (S::DEPTH == 1) {
      // Carried from step to step in uniform registers: worked out anew, they would delay each step's first product.
      const Ring first = ring.at(0);
      uint32_t x = low(ring.x_at() + row_in_tile * 128), w = low(ring.w_at() + output_in_tile * 128);
      uint32_t row_scales = ring.scales_at() + 4 * thread_row, tile_scales = ring.scales_at() + 4 * S::BM;
      uint32_t full = ring.full_at();
      for (int k = 0; k < p.steps; ++k) {
        if (!is_full) mbarrier_wait(full, ring.phase);
        Scales<S> s;
        s.read(row_scales, tile_scales, block, has_tiles);
#pragma unroll
        for (int m = 0; m < S::MB; ++m) {
          multiply_step<S::N>(d[0], x + m * 512, w);
          wgmma_wait<0>();
          if (m == S::MB - 1) {
            release<S>(ring.empty_at(), lane);
            ring.advance();
            const bool is_first_stage = ring.stage == 0;
            x = is_first_stage ? low(first.x_at() + row_in_tile * 128) : x + ring.x_bytes / 16;
            w = is_first_stage ? low(first.w_at() + output_in_tile * 128) : w + ring.w_bytes / 16;
            row_scales = is_first_stage ? first.scales_at() + 4 * thread_row : row_scales + ring.scale_bytes;
            tile_scales = is_first_stage ? first.scales_at() + 4 * S::BM : tile_scales + ring.scale_bytes;
            full = is_first_stage ? first.full_at() : full + 8;
            is_full = __all_sync(~0u, is_complete(full, ring.phase));
          }
          promote<S>(acc[m], d[0], s, m, boundary);
        }
      }
    } else {
      constexpr int D = S::DEPTH;
      static_assert(D == 1 || S::MB == 1, "products in flight are of one block of rows");
      Scales<S> s[D];
      uint32_t empty[D];
      auto issue = [&](int i) {
        mbarrier_wait(ring.full_at(), ring.phase);
        s[i].read(ring.scales_at() + 4 * thread_row, ring.scales_at() + 4 * S::BM, block, has_tiles);
        multiply_step<S::N>(d[i], low(ring.x_at() + row_in_tile * 128), low(ring.w_at() + output_in_tile * 128));
        empty[i] = ring.empty_at();
        ring.advance();
      };
      auto finish = [&](int i) {
        release<S>(empty[i], lane);
        promote<S>(acc[0], d[i], s[i], 0, boundary);
      };
      int left = p.steps;
      for (; left >= D; left -= D) {
#pragma unroll
        for (int i = 0; i < D; ++i) issue(i);
#pragma unroll
        for (int i = 0; i < D; ++i) {
          wait_for(D - 1 - i);
          finish(i);
        }
      }
      for (; left; --left) {
        issue(0);
        wgmma_wait<0>();
        finish(0);
      }
    }
    auto store = [&](float (&block)[S::N / 2], int m) {
      if (p.base) scale_outputs<S::N>(block, p, tile.group, output + lane % 4 * 2);
      const int row = tile.row + row_in_tile + 64 * m;
      bool is_done = row >= tile.end;
      if constexpr (S::CAN_COPY) {
        if (!is_done && p.is_copied && (row + 64 <= tile.end || tile.end == p.rows)) {
          copy_block<S::N>(y_map, block, staging + m * 64 * S::N * 2, row, output, 1 + group, is_first, m == 0, warp,
                           lane);
          is_done = true;
        }
      }
      if (!is_done) store_pairs<S::N>(p, block, tile.row + thread_row + 64 * m, tile.end, output + lane % 4 * 2);
    };
    if constexpr (S::GATED) {
      store_gated<S>(p, acc, tile, shared, group / S::WM, thread_row, lane);
    } else {
      store(acc[0], 0);
      if constexpr (S::MB == 2) store(acc[1], 1);
    }
  }
  if (is_first) bulk_wait_read<0>();
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1)
fp8_product(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
            const __grid_constant__ CUtensorMap y_map, const Problem p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  Ring ring;
  ring.stages = p.stages;
  ring.x_bytes = p.stage_rows * 128;
  ring.w_bytes = S::BN * 128;
  // x before W: wgmma reads whole blocks of 64 rows, also where x has fewer.
  ring.x = shared_address(shared) + S::STAGING;
  ring.w = ring.x + p.stages * ring.x_bytes;
  ring.scales = ring.w + p.stages * ring.w_bytes;
  ring.scale_bytes = S::BM * 4 + 16;
  ring.full = ring.scales + p.stages * ring.scale_bytes;
  ring.empty = ring.full + 8 * p.stages;
  if (threadIdx.x == 0) {
    prefetch_map(x_map);
    prefetch_map(w_map);
    for (int i = 0; i < p.stages; ++i) {
      mbarrier_init(ring.full + 8 * i, 1 + COPIERS);
      mbarrier_init(ring.empty + 8 * i, 4 * S::GROUPS * S::CLUSTER);
    }
    fence_barrier_init();
  }
  if constexpr (S::CLUSTER > 1) cluster_sync();
  else __syncthreads();
  grid_dependency_launch();
  if (uniform(threadIdx.x / 128) == S::GROUPS) {
    if constexpr (S::IS_LARGE) give_registers<40>();
    const int thread = threadIdx.x - 128 * S::GROUPS;
    if (thread == 0) produce<S>(x_map, w_map, p, ring);
    if (thread >= 32) produce_scales<S>(p, ring, thread - 32);
  } else {
    if constexpr (S::IS_LARGE) take_registers<232>();
    consume<S>(y_map, p, ring, shared);
  }
  // Until no block of the cluster copies to another or arrives there.
  if constexpr (S::CLUSTER > 1) cluster_sync();
}

// --- host

constexpr int SHARED_LIMIT = 232448, MOST_STAGES = 32;

template <class S>
int launch(const void* x, const void* w, Problem p, int programs, bool is_early, cudaStream_t stream) {
  // Few rows: a stage holds only the eights that have any, and the ring is as much deeper.
  constexpr int EIGHTS = 8 * S::CLUSTER_OUTPUTS;
  p.stage_rows = p.ends ? S::BM : min(S::BM, (p.rows + EIGHTS - 1) / EIGHTS * EIGHTS);
  p.box_rows = p.ends && !S::IS_LARGE ? 16 : p.stage_rows;
  if (S::CLUSTER_OUTPUTS > 1) p.box_rows = p.stage_rows / S::CLUSTER;
  const int stage = p.stage_rows * 128 + S::BN * 128 + S::BM * 4 + 16 + 16;
  p.stages = min(MOST_STAGES, (SHARED_LIMIT - S::STAGING) / stage);
  const int bytes = S::STAGING + p.stages * stage;
  const int inputs = p.steps * 128;
  p.is_copied = S::CAN_COPY && !p.is_float && p.outputs % 8 == 0;
  CUtensorMap x_map, w_map, y_map{};
  const auto codes = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  if (!make_map(&x_map, codes, x, inputs, p.rows, inputs, 128, p.box_rows)) return cudaErrorInvalidValue;
  if (!make_map(&w_map, codes, w, inputs, (uint64_t)p.groups * p.outputs, inputs, 128, S::BN / S::CLUSTER_ROWS))
    return cudaErrorInvalidValue;
  if (p.is_copied &&
      !make_map(&y_map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, p.y, p.outputs, p.rows, p.outputs * 2ull, 64, 64))
    return cudaErrorInvalidValue;
  const auto kernel = fp8_product<S>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_LIMIT);
  if (error) return error;
  const int grid = programs / S::CLUSTER * S::CLUSTER;
  return launch_clusters(kernel, S::CLUSTER, grid, S::THREADS, bytes, is_early, stream, x_map, w_map, y_map, p);
}

Problem problem(const void* row_scale, const void* tile_scale, const void* base, const void* ends, void* y, int rows,
                int outputs, int inputs, int groups, int band, int is_streamed) {
  Problem p{};
  p.row_scale = (const float*)row_scale;
  p.tile_scale = (const float*)tile_scale;
  p.base = (const float*)base;
  p.ends = (const int*)ends;
  p.y = y;
  p.rows = rows;
  p.outputs = outputs;
  p.steps = inputs / 128;
  p.groups = groups;
  p.band = band;
  p.is_streamed = is_streamed;
  return p;
}

// `shape` names the tile (tiles.py); any gives the same bits.
extern "C" int fp8_multiply(const void* x, const void* row_scale, const void* w, const void* tile_scale,
                            const void* base, const void* ends, void* y, int rows, int outputs, int inputs, int groups,
                            int is_float, int shape, int programs, int band, int is_streamed, int is_early,
                            void* stream) {
  Problem p = problem(row_scale, tile_scale, base, ends, y, rows, outputs, inputs, groups, band, is_streamed);
  p.is_float = is_float;
  const auto at = (cudaStream_t)stream;
  switch (shape) {
    case 0: return launch<Shape<1, 1, 1, 16, 4>>(x, w, p, programs, is_early, at);
    case 1: return launch<Shape<1, 1, 1, 32, 4>>(x, w, p, programs, is_early, at);
    case 2: return launch<Shape<1, 1, 1, 64, 3>>(x, w, p, programs, is_early, at);
    case 3: return launch<Shape<2, 1, 1, 16, 4>>(x, w, p, programs, is_early, at);
    case 4: return launch<Shape<2, 1, 1, 32, 4>>(x, w, p, programs, is_early, at);
    case 5: return launch<Shape<2, 1, 1, 64, 2>>(x, w, p, programs, is_early, at);
    case 6: return launch<Shape<2, 1, 1, 128, 1>>(x, w, p, programs, is_early, at);
    case 7: return launch<Shape<2, 1, 1, 160, 1>>(x, w, p, programs, is_early, at);
    case 8: return launch<Shape<2, 1, 1, 192, 1>>(x, w, p, programs, is_early, at);
    case 9: return launch<Shape<1, 2, 2, 128, 1>>(x, w, p, programs, is_early, at);
    case 10: return launch<Shape<2, 1, 1, 16, 4, 1, 4>>(x, w, p, programs, is_early, at);
    case 11: return launch<Shape<2, 1, 1, 32, 4, 1, 4>>(x, w, p, programs, is_early, at);
    case 12: return launch<Shape<2, 1, 1, 192, 1, 2, 1>>(x, w, p, programs, is_early, at);
    case 13: return launch<Shape<1, 2, 2, 128, 1, 2, 1>>(x, w, p, programs, is_early, at);
  }
  return cudaErrorInvalidValue;
}

// Weights in eights of gate and eights of up, outputs a multiple of 256; base and tile_scale have gates, then ups.
extern "C" int fp8_multiply_gated(const void* x, const void* row_scale, const void* w, const void* tile_scale,
                                  const void* base, const void* ends, const void* row_weight, const void* picks,
                                  void* y, void* y_scale, int rows, int outputs, int inputs, int groups, float limit,
                                  int programs, int band, int is_early, void* stream) {
  Problem p = problem(row_scale, tile_scale, base, ends, y, rows, outputs, inputs, groups, band, 0);
  p.row_weight = (const float*)row_weight;
  p.picks = (const int*)picks;
  p.y_scale = (float*)y_scale;
  p.limit = limit;
  return launch<Shape<1, 2, 2, 128, 1, 1, 1, true>>(x, w, p, programs, is_early, (cudaStream_t)stream);
}
