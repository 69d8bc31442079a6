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

using namespace hopper;

// --- e4m3 products of 64 rows x N outputs x 32 of K; both operands in shared memory in 128-byte swizzle
#define REGS_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define REGS_16 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGS_32 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define REGS_48 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGS_64 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define REGS_80 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define FLOATS(d, i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FLOATS_16(d, i) FLOATS(d, i), FLOATS(d, i + 4), FLOATS(d, i + 8), FLOATS(d, i + 12)
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
};

struct Tile {
  int group, row, end, output;  // rows row .. end - 1 of the group; first output
};

// Tiles of this block, in order: of each group its bands of row tiles, each band output tile by output tile.
template <int BM, int BN> struct Tiles {
  const Problem& p;
  int next, before = 0, group = 0, start = 0, end;
  __device__ Tiles(const Problem& problem) : p(problem), next(blockIdx.x) { end = p.ends ? p.ends[0] : p.rows; }
  __device__ bool get(Tile& tile) {
    const int columns = (p.outputs + BN - 1) / BN;
    int bands = (end - start + BM - 1) / BM;
    while (next - before >= bands * columns) {
      before += bands * columns;
      if (++group == p.groups) return false;
      start = end;
      end = p.ends[group];
      bands = (end - start + BM - 1) / BM;
    }
    const int place = next - before, first = place / (p.band * columns) * p.band;
    const int height = min(bands - first, p.band), inside = place - first * columns;
    tile = {group, start + (first + inside % height) * BM, end, inside / height * BN};
    next += gridDim.x;
    return true;
  }
};

// WM x WN consumer warpgroups, each of MB blocks of 64 rows by N outputs; DEPTH products of 128 K in flight.
template <int WM_, int WN_, int MB_, int N_, int DEPTH_> struct Shape {
  static constexpr int WM = WM_, WN = WN_, MB = MB_, N = N_, DEPTH = DEPTH_;
  static constexpr int BM = 64 * WM * MB, BN = N * WN, GROUPS = WM * WN, THREADS = 128 * GROUPS + 128;
  static constexpr bool IS_LARGE = N >= 128 && GROUPS == 2;  // most registers to the consumers, y staged for TMA
  static constexpr bool STRADDLES = N > 128 || 128 % N != 0;  // a tile's outputs lie in two 128s
  static constexpr bool CAN_COPY = IS_LARGE && N % 64 == 0;
  static constexpr int STAGING = CAN_COPY ? GROUPS * 64 * N * 2 : 0;
};

struct Ring {
  uint32_t x, w, full, empty, x_bytes, w_bytes;
  int stages, stage = 0;
  uint32_t phase = 0;
  __device__ void advance() {
    if (++stage == stages) { stage = 0; phase ^= 1; }
  }
  __device__ uint32_t x_at() const { return x + stage * x_bytes; }
  __device__ uint32_t w_at() const { return w + stage * w_bytes; }
  __device__ uint32_t full_at() const { return full + 8 * stage; }
  __device__ uint32_t empty_at() const { return empty + 8 * stage; }
};

template <class S>
__device__ __forceinline__ void produce(const CUtensorMap& x_map, const CUtensorMap& w_map, const Problem& p,
                                        Ring ring) {
  const uint64_t policy = evict_first_policy();
  auto load_w = [&](const Tile& t, int k) {
    const int row = t.group * p.outputs + t.output;
    if (p.is_streamed) tensor_load(ring.w_at(), w_map, k * 128, row, ring.full_at(), policy);
    else tensor_load(ring.w_at(), w_map, k * 128, row, ring.full_at());
  };
  auto load_x = [&](const Tile& t, int k) {
    const int rows = min(t.end - t.row, S::BM);
    for (int r = 0; r < rows; r += p.box_rows)
      tensor_load(ring.x_at() + r * 128, x_map, k * 128, t.row + r, ring.full_at());
  };
  auto bytes = [&](const Tile& t) {
    const int rows = min(t.end - t.row, S::BM);
    return ring.w_bytes + (rows + p.box_rows - 1) / p.box_rows * p.box_rows * 128;
  };
  Tile tile;
  int ahead = 0;
  if (!p.ends) {  // weights of the first ring do not wait for the kernel before
    Tiles<S::BM, S::BN> first(p);
    if (first.get(tile)) {
      Ring start = ring;
      for (; ahead < min(ring.stages, p.steps); ++ahead, ring.advance()) {
        mbarrier_arrive_expect(ring.full_at(), bytes(tile));
        load_w(tile, ahead);
      }
      ring = start;
    }
  }
  grid_dependency_wait();
  for (Tiles<S::BM, S::BN> tiles(p); tiles.get(tile); ahead = 0) {
    for (int k = 0; k < p.steps; ++k, ring.advance()) {
      if (k >= ahead) {
        mbarrier_wait(ring.empty_at(), ring.phase ^ 1);
        mbarrier_arrive_expect(ring.full_at(), bytes(tile));
        load_w(tile, k);
      }
      load_x(tile, k);
    }
  }
}

// The scales of one step for a thread's rows (g and g + 8 of each block) and for both 128s of its outputs.
template <int MB> struct Scales {
  float row[MB][2], tile[2];
};

template <class S> struct ScaleReader {
  const float *rows, *tiles;
  int row[S::MB][2], tile[2];  // where their scales begin
  __device__ ScaleReader(const Problem& p, const Tile& t, int first_row, int first_output)
      : rows(p.row_scale), tiles(p.tile_scale) {
#pragma unroll
    for (int m = 0; m < S::MB; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        row[m][h] = min(first_row + 64 * m + 8 * h, p.rows - 1) * p.steps;
    const int blocks = (p.outputs + 127) / 128, block = first_output / 128;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      tile[i] = (t.group * blocks + min(block + i, blocks - 1)) * p.steps;
  }
  __device__ void read(Scales<S::MB>& s, int k) const {
#pragma unroll
    for (int m = 0; m < S::MB; ++m) {
      s.row[m][0] = rows[row[m][0] + k];
      s.row[m][1] = rows[row[m][1] + k];
    }
    s.tile[0] = tiles ? tiles[tile[0] + k] : 1.f;
    if constexpr (S::STRADDLES) s.tile[1] = tiles ? tiles[tile[1] + k] : 1.f;
  }
  // Brings this thread's row scales near: a warp's threads t of a row take every fourth line of 32 bytes.
  __device__ void warm(int steps, int t) const {
    for (int k = 8 * t; k < steps; k += 32)
#pragma unroll
      for (int m = 0; m < S::MB; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float unused;
          asm volatile("ld.global.f32 %0, [%1];" : "=f"(unused) : "l"(rows + row[m][h] + k));
        }
  }
};

template <int N>
__device__ __forceinline__ void multiply_step(float (&d)[N / 2], uint32_t x, uint32_t w) {
  const uint64_t a = wgmma_swizzled(x), b = wgmma_swizzled(w);
  wgmma_hold(d);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) product<N>(d, a + 2 * k, b + 2 * k, k > 0);
  wgmma_commit();
}

// `boundary`: the first of the tile's outputs that belongs to its second 128.
template <class S>
__device__ __forceinline__ void promote(float (&acc)[S::N / 2], float (&d)[S::N / 2], const Scales<S::MB>& s, int m,
                                        int boundary) {
  wgmma_hold(d);
  const float near[2] = {s.row[m][0] * s.tile[0], s.row[m][1] * s.tile[0]};
  float far[2] = {near[0], near[1]};
  if constexpr (S::STRADDLES) { far[0] = s.row[m][0] * s.tile[1]; far[1] = s.row[m][1] * s.tile[1]; }
#pragma unroll
  for (int n = 0; n < S::N / 8; ++n) {
    const bool is_far = S::STRADDLES && n / 4 * 32 >= boundary;
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
      const size_t place = (size_t)r * p.outputs + o;
      const bool has_second = o + 1 < p.outputs;
      if (p.is_float) {
        float* y = (float*)p.y + place;
        if (is_even) *(float2*)y = make_float2(a, b);
        else { y[0] = a; if (has_second) y[1] = b; }
      } else {
        __nv_bfloat16* y = (__nv_bfloat16*)p.y + place;
        if (is_even) *(__nv_bfloat162*)y = __floats2bfloat162_rn(a, b);
        else { y[0] = __float2bfloat16_rn(a); if (has_second) y[1] = __float2bfloat16_rn(b); }
      }
    }
}

// 64 x N results in bfloat16 through shared memory, 64 outputs a box in 128-byte swizzle.
template <int N>
__device__ __forceinline__ void copy_block(const CUtensorMap& y_map, const float (&acc)[N / 2], uint32_t staging,
                                           int row, int output, int barrier, bool is_first, int warp, int lane) {
  if (is_first) bulk_wait_read<0>();
  named_barrier_sync(barrier, 128);
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

template <class S>
__device__ __forceinline__ void consume(const CUtensorMap& y_map, const Problem& p, Ring ring, uint32_t staging) {
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int row_in_tile = group % S::WM * S::MB * 64, output_in_tile = group / S::WM * S::N;
  const int thread_row = row_in_tile + 16 * warp + lane / 4;
  const bool is_first = threadIdx.x % 128 == 0;
  staging += group * 64 * S::N * 2;
  grid_dependency_wait();
  float acc[S::MB][S::N / 2], d[S::DEPTH][S::N / 2];
#pragma unroll
  for (int i = 0; i < S::DEPTH; ++i)
#pragma unroll
    for (int j = 0; j < S::N / 2; ++j) d[i][j] = 0.f;
  Tile tile;
  for (Tiles<S::BM, S::BN> tiles(p); tiles.get(tile);) {
    const int output = tile.output + output_in_tile, boundary = 128 - output % 128;
    const ScaleReader<S> reader(p, tile, tile.row + thread_row, min(output, p.outputs - 1));
    if constexpr (!S::IS_LARGE) reader.warm(p.steps, lane % 4);
#pragma unroll
    for (int m = 0; m < S::MB; ++m)
#pragma unroll
      for (int j = 0; j < S::N / 2; ++j) acc[m][j] = 0.f;
    if constexpr (S::DEPTH == 1) {
      Scales<S::MB> next;
      reader.read(next, 0);
      for (int k = 0; k < p.steps; ++k, ring.advance()) {
        const Scales<S::MB> s = next;
        reader.read(next, min(k + 1, p.steps - 1));
        mbarrier_wait(ring.full_at(), ring.phase);
#pragma unroll
        for (int m = 0; m < S::MB; ++m) {
          multiply_step<S::N>(d[0], ring.x_at() + (row_in_tile + 64 * m) * 128, ring.w_at() + output_in_tile * 128);
          wgmma_wait<0>();
          if (m == S::MB - 1 && lane == 0) mbarrier_arrive(ring.empty_at());
          promote<S>(acc[m], d[0], s, m, boundary);
        }
      }
    } else {
      static_assert(S::DEPTH == 1 || S::MB == 1, "products in flight are of one block of rows");
      Scales<1> s[2];
      auto issue = [&](float (&into)[S::N / 2], Scales<1>& scales, int k) {
        reader.read(scales, k);
        mbarrier_wait(ring.full_at(), ring.phase);
        multiply_step<S::N>(into, ring.x_at() + row_in_tile * 128, ring.w_at() + output_in_tile * 128);
      };
      auto finish = [&](float (&from)[S::N / 2], const Scales<1>& scales, uint32_t empty) {
        if (lane == 0) mbarrier_arrive(empty);
        promote<S>(acc[0], from, scales, 0, boundary);
      };
      uint32_t before = ring.empty_at();
      issue(d[0], s[0], 0);
      ring.advance();
      int k = 1;
      for (; k + 1 < p.steps; k += 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t empty = ring.empty_at();
          issue(d[1 - i], s[1 - i], k + i);
          ring.advance();
          wgmma_wait<1>();
          finish(d[i], s[i], before);
          before = empty;
        }
      }
      if (k < p.steps) {
        const uint32_t empty = ring.empty_at();
        issue(d[1], s[1], k);
        ring.advance();
        wgmma_wait<1>();
        finish(d[0], s[0], before);
        wgmma_wait<0>();
        finish(d[1], s[1], empty);
      } else {
        wgmma_wait<0>();
        finish(d[0], s[0], before);
      }
    }
    auto store = [&](float (&block)[S::N / 2], int m) {
      if (p.base) scale_outputs<S::N>(block, p, tile.group, output + lane % 4 * 2);
      const int row = tile.row + row_in_tile + 64 * m;
      bool is_done = row >= tile.end;
      if constexpr (S::CAN_COPY) {
        if (!is_done && p.is_copied && (row + 64 <= tile.end || tile.end == p.rows)) {
          copy_block<S::N>(y_map, block, staging, row, output, 1 + group, is_first, warp, lane);
          is_done = true;
        }
      }
      if (!is_done) store_pairs<S::N>(p, block, tile.row + thread_row + 64 * m, tile.end, output + lane % 4 * 2);
    };
    store(acc[0], 0);
    if constexpr (S::MB == 2) store(acc[1], 1);
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
  const uint32_t staging = shared_address(shared);
  ring.x = staging + S::STAGING;  // before the other ring: wgmma reads whole blocks of 64 rows, also where x has fewer
  ring.w = ring.x + p.stages * ring.x_bytes;
  ring.full = ring.w + p.stages * ring.w_bytes;
  ring.empty = ring.full + 8 * p.stages;
  if (threadIdx.x == 0) {
    prefetch_map(x_map);
    prefetch_map(w_map);
    for (int i = 0; i < p.stages; ++i) {
      mbarrier_init(ring.full + 8 * i, 1);
      mbarrier_init(ring.empty + 8 * i, 4 * S::GROUPS);
    }
    fence_barrier_init();
  }
  __syncthreads();
  grid_dependency_launch();
  if (threadIdx.x >= 128 * S::GROUPS) {
    if constexpr (S::IS_LARGE) give_registers<40>();
    if (threadIdx.x == 128 * S::GROUPS) produce<S>(x_map, w_map, p, ring);
  } else {
    if constexpr (S::IS_LARGE) take_registers<232>();
    consume<S>(y_map, p, ring, staging);
  }
}

// --- host

constexpr int SHARED_LIMIT = 232448, MOST_STAGES = 32;

template <class S>
int launch(const void* x, const void* w, Problem p, int programs, bool is_early, cudaStream_t stream) {
  // Few rows: a stage holds only the eights that have any, and the ring is as much deeper.
  const int rows = p.ends ? S::BM : min(S::BM, (p.rows + 7) / 8 * 8);
  p.stage_rows = rows;
  p.box_rows = p.ends && !S::IS_LARGE ? 16 : rows;
  const int stage = rows * 128 + S::BN * 128 + 16;
  p.stages = min(MOST_STAGES, (SHARED_LIMIT - S::STAGING - 1024) / stage);
  const int bytes = S::STAGING + p.stages * stage;
  const int inputs = p.steps * 128;
  p.is_copied = S::CAN_COPY && !p.is_float && p.outputs % 8 == 0;
  CUtensorMap x_map, w_map, y_map{};
  const auto codes = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  if (!make_map(&x_map, codes, x, inputs, p.rows, inputs, 128, p.box_rows)) return cudaErrorInvalidValue;
  if (!make_map(&w_map, codes, w, inputs, (uint64_t)p.groups * p.outputs, inputs, 128, S::BN))
    return cudaErrorInvalidValue;
  if (p.is_copied &&
      !make_map(&y_map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, p.y, p.outputs, p.rows, p.outputs * 2ull, 64, 64))
    return cudaErrorInvalidValue;
  const auto kernel = fp8_product<S>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_LIMIT);
  if (error) return error;
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = programs;
  config.blockDim = S::THREADS;
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = is_early;
  return cudaLaunchKernelEx(&config, kernel, x_map, w_map, y_map, p);
}

// `shape` names the tile (tiles.py); any gives the same bits.
extern "C" int fp8_multiply(const void* x, const void* row_scale, const void* w, const void* tile_scale,
                            const void* base, const void* ends, void* y, int rows, int outputs, int inputs, int groups,
                            int is_float, int shape, int programs, int band, int is_streamed, int is_early,
                            void* stream) {
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
  p.is_float = is_float;
  p.band = band;
  p.is_streamed = is_streamed;
  const auto at = (cudaStream_t)stream;
  switch (shape) {
    case 0: return launch<Shape<1, 1, 1, 16, 2>>(x, w, p, programs, is_early, at);
    case 1: return launch<Shape<1, 1, 1, 32, 2>>(x, w, p, programs, is_early, at);
    case 2: return launch<Shape<1, 1, 1, 64, 2>>(x, w, p, programs, is_early, at);
    case 3: return launch<Shape<2, 1, 1, 16, 2>>(x, w, p, programs, is_early, at);
    case 4: return launch<Shape<2, 1, 1, 32, 2>>(x, w, p, programs, is_early, at);
    case 5: return launch<Shape<2, 1, 1, 64, 2>>(x, w, p, programs, is_early, at);
    case 6: return launch<Shape<2, 1, 1, 128, 1>>(x, w, p, programs, is_early, at);
    case 7: return launch<Shape<2, 1, 1, 160, 1>>(x, w, p, programs, is_early, at);
    case 8: return launch<Shape<2, 1, 1, 192, 1>>(x, w, p, programs, is_early, at);
    case 9: return launch<Shape<1, 2, 2, 128, 1>>(x, w, p, programs, is_early, at);
  }
  return cudaErrorInvalidValue;
}
