// Products of few rows and weights in FP8, y = x W^T, and gated ones: the bits of fp8_product.cu, streamed for one row.
//
// Order, as there: from acc = 0, for each 128 of K ascending, acc = fma(d, row scale * tile scale, acc), d one chain of
// four e4m3 wgmma over these 128. No d waits for another, only the fma do: a stage of the ring holds four steps, whose
// 16 wgmma are in flight together, two stages at a time, and are folded in order. What a step would wait for is out of
// its way: a stage comes by two copies (boxes of three dimensions), scales of all steps are in shared memory before.
//
// A block has all rows and N outputs at a time. Blocks of few stages let those of the next launch begin beside them.
#include <cuda_bf16.h>
#include "hopper.cuh"
#include "products.cuh"

using namespace hopper;

constexpr int SPAN = 4;               // steps of 128 inputs in a stage
constexpr int MOST_ROWS = 64;         // of a warpgroup

// --- boxes of SPAN steps: [step][row][128] in 128-byte swizzle

__device__ __forceinline__ void box_load(uint32_t target, const CUtensorMap& map, int row, int step, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
      ::"r"(target), "l"(&map), "r"(0), "r"(row), "r"(step), "r"(barrier) : "memory");
}
__device__ __forceinline__ void box_load(uint32_t target, const CUtensorMap& map, int row, int step, uint32_t barrier,
                                         uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;"
      ::"r"(target), "l"(&map), "r"(0), "r"(row), "r"(step), "r"(barrier), "l"(policy) : "memory");
}

struct Problem {
  const float* row_scale;   // [rows, steps]
  const float* tile_scale;  // [ceil(outputs / 128), steps] or null
  const float* base;        // [outputs] or null
  void* y;                  // [rows, outputs], bfloat16 or float32
  int rows, outputs, steps, stages, box_rows, most_tiles, is_float;
  // What follows a gated product: y = FP8 of silu(min(gate, limit)) * clamp(up) * row_weight[picks[row]].
  const float* row_weight;
  const int* picks;
  float* y_scale;           // [rows, outputs / 256]
  float limit;
};

template <int N_, bool GATED_ = false> struct Shape {
  static constexpr int N = N_, SETS = N <= 32 ? 2 : 1, CONSUMERS = 128, THREADS = CONSUMERS + 32;
  static constexpr bool GATED = GATED_;
  // Blocks that share a scale of gated columns: four of 64 outputs. Clusters of eight do not fill the machine's parts.
  static constexpr int CLUSTER = GATED ? 256 / N : 1;
};

__host__ __device__ inline int padded(int steps) { return (steps + SPAN - 1) / SPAN * SPAN; }

// What lies in shared memory, in order; floats of a row's scales are padded against conflicts of banks.
struct Layout {
  int x_bytes, w_bytes, x, w, row_scales, tile_scales, maxima, full, bytes, row_stride;
  __host__ __device__ Layout(const Problem& p, int n) {
    x_bytes = SPAN * 128 * p.box_rows;
    w_bytes = SPAN * 128 * n;
    row_stride = padded(p.steps) + 4;
    x = 0;
    w = x + p.stages * x_bytes;  // behind x: wgmma reads whole blocks of 64 rows, also where x has fewer
    row_scales = w + p.stages * w_bytes;
    tile_scales = row_scales + 4 * p.box_rows * row_stride;
    maxima = tile_scales + 4 * p.most_tiles * padded(p.steps);
    full = maxima + 4 * (256 / n) * MOST_ROWS;
    bytes = full + 16 * p.stages;
  }
};

__device__ __forceinline__ float4 load_shared4(uint32_t source) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(source) : "memory");
  return v;
}

// One thread copies stage after stage; weights of the first ring do not wait for the kernel before.
template <class S>
__device__ __forceinline__ void produce(const CUtensorMap& x_map, const CUtensorMap& w_map, const Problem& p,
                                        const Layout& at, uint32_t shared, int tiles) {
  const uint64_t policy = evict_first_policy();
  const int chunks = (p.steps + SPAN - 1) / SPAN, items = tiles * chunks, ahead = min(p.stages, items);
  const uint32_t full = shared + at.full, empty = full + 8 * p.stages;
  auto load_w = [&](int item, int stage) {
    const int tile = blockIdx.x + item / chunks * gridDim.x;
    mbarrier_arrive_expect(full + 8 * stage, at.x_bytes + at.w_bytes);
    box_load(shared + at.w + stage * at.w_bytes, w_map, tile * S::N, item % chunks * SPAN, full + 8 * stage, policy);
  };
  for (int i = 0; i < ahead; ++i) load_w(i, i);
  grid_dependency_wait();
  int stage = 0;
  uint32_t phase = 1;
  for (int i = 0; i < items; ++i) {
    if (i >= ahead) {
      mbarrier_wait(empty + 8 * stage, phase);
      load_w(i, stage);
    }
    box_load(shared + at.x + stage * at.x_bytes, x_map, 0, i % chunks * SPAN, full + 8 * stage);
    if (++stage == p.stages) { stage = 0; phase ^= 1; }
  }
}

// Scales of all steps of this block's tiles; those of weights do not wait for the kernel before.
template <class S>
__device__ __forceinline__ void load_scales(const Problem& p, const Layout& at, uint8_t* shared, int tiles) {
  const int wide = padded(p.steps), blocks = (p.outputs + 127) / 128;
  float* tile_scales = (float*)(shared + at.tile_scales);
  for (int i = threadIdx.x; i < p.most_tiles * wide; i += S::CONSUMERS) {
    const int tile = i / wide, k = i % wide;
    int block = (blockIdx.x + tile * gridDim.x) * S::N / 128;
    if constexpr (S::GATED) block = blockIdx.x / S::CLUSTER + tile * (blocks / 2);
    if ((S::GATED || tile < tiles) && k < p.steps) tile_scales[i] = p.tile_scale ? p.tile_scale[block * p.steps + k] : 1.f;
  }
  grid_dependency_wait();
  float* row_scales = (float*)(shared + at.row_scales);
  for (int i = threadIdx.x; i < p.rows * p.steps; i += S::CONSUMERS)
    row_scales[i / p.steps * at.row_stride + i % p.steps] = p.row_scale[i];
  named_barrier_sync(1, S::CONSUMERS);
}

template <int N>
__device__ __forceinline__ void store_pairs(const Problem& p, const float (&acc)[N / 2], int row, int output) {
  const bool is_even = p.outputs % 2 == 0;
#pragma unroll
  for (int n = 0; n < N / 8; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = row + 8 * h, o = output + 8 * n;
      if (r >= p.rows || o >= p.outputs) continue;
      float a = acc[4 * n + 2 * h], b = acc[4 * n + 2 * h + 1];
      const bool has_second = o + 1 < p.outputs;
      if (p.base) { a *= p.base[o]; b *= has_second ? p.base[o + 1] : 0.f; }
      store_pair(p.y, p.is_float, (size_t)r * p.outputs + o, a, b, is_even, has_second);
    }
}

// Outputs come in eights of gate and eights of up: N / 2 columns of y a block, 128 a cluster, which share a scale a row.
// Every thread of the cluster comes here, and meets the others once.
template <class S>
__device__ __forceinline__ void store_gated(const Problem& p, float (&acc)[S::N / 2], uint32_t maxima, int row,
                                            int lane) {
  static_assert(!S::GATED || S::CLUSTER == 4, "each lane of a quad tells one block");
  const int columns = p.outputs / 2, first = blockIdx.x * (S::N / 2) + lane % 4 * 2, rank = blockIdx.x % S::CLUSTER;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = row + 8 * h;
    if (r >= p.rows) continue;
    const float weight = p.row_weight ? p.row_weight[p.picks ? p.picks[r] : r] : 1.f;
    int most = 0;
#pragma unroll
    for (int q = 0; q < S::N / 16; ++q)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float gate = acc[8 * q + 2 * h + j], up = acc[8 * q + 4 + 2 * h + j];
        if (p.base) {
          const float* base = p.base + first + 8 * q + j;
          gate *= base[0];
          up *= base[columns];
        }
        gate = at_most(gate, p.limit);
        up = -at_most(-at_most(up, p.limit), p.limit);
        const float value = gate / (1.f + expf(-gate)) * up * weight;
        acc[8 * q + 2 * h + j] = value;
        most = max(most, __float_as_int(fabsf(value)));
      }
    const uint32_t quad = 0xFu << lane / 4 * 4;  // the lanes of this row
    most = max(most, __shfl_xor_sync(quad, most, 1));
    most = max(most, __shfl_xor_sync(quad, most, 2));
    store_at(maxima + 4 * (rank * MOST_ROWS + r), lane % 4, most);
  }
  cluster_arrive();
  cluster_wait();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = row + 8 * h;
    if (r >= p.rows) continue;
    int most = 0;
#pragma unroll
    for (int i = 0; i < S::CLUSTER; ++i)
      most = max(most, __float_as_int(load_shared(maxima + 4 * (i * MOST_ROWS + r))));
    const float scale = power_of_two_scale(most);
    if (rank == 0 && lane % 4 == 0) p.y_scale[(size_t)r * (columns / 128) + blockIdx.x / S::CLUSTER] = scale;
#pragma unroll
    for (int q = 0; q < S::N / 16; ++q) {
      uint16_t pair;
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
          : "=h"(pair) : "f"(acc[8 * q + 2 * h + 1] / scale), "f"(acc[8 * q + 2 * h] / scale));
      *(uint16_t*)((uint8_t*)p.y + (size_t)r * columns + first + 8 * q) = pair;
    }
  }
}

template <class S>
__device__ __forceinline__ void consume(const Problem& p, const Layout& at, uint8_t* shared_bytes, int tiles) {
  const uint32_t shared = shared_address(shared_bytes);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = 16 * warp + lane / 4;
  const bool has_rows = 16 * warp < p.rows;  // of a warp; all of them multiply
  const uint32_t full = shared + at.full, empty = full + 8 * p.stages;
  const uint32_t row_scales = shared + at.row_scales + 4 * row * at.row_stride, next_row = 32 * at.row_stride;
  load_scales<S>(p, at, shared_bytes, tiles);
  int stage = 0;
  uint32_t phase = 0;
  float acc[S::N / 2], d[S::SETS][SPAN][S::N / 2];
#pragma unroll
  for (int s = 0; s < S::SETS; ++s)
#pragma unroll
    for (int i = 0; i < SPAN; ++i)
#pragma unroll
      for (int j = 0; j < S::N / 2; ++j) d[s][i][j] = 0.f;
  uint32_t taken[S::SETS];
  auto issue = [&](int s) {
    mbarrier_wait(full + 8 * stage, phase);
    const uint64_t a = wgmma_swizzled(shared + at.x + stage * at.x_bytes);
    const uint64_t b = wgmma_swizzled(shared + at.w + stage * at.w_bytes);
#pragma unroll
    for (int i = 0; i < SPAN; ++i) wgmma_hold(d[s][i]);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int i = 0; i < SPAN; ++i)
        product<S::N>(d[s][i], a + i * 8 * p.box_rows + 2 * k, b + i * 8 * S::N + 2 * k, k > 0);
    wgmma_commit();
    taken[s] = empty + 8 * stage;
    if (++stage == p.stages) { stage = 0; phase ^= 1; }
  };
  auto fold = [&](int s, int step, uint32_t tile_scales) {
#pragma unroll
    for (int i = 0; i < SPAN; ++i) wgmma_hold(d[s][i]);
    if (lane == 0) mbarrier_arrive(taken[s]);
    if (!has_rows) return;
    const float4 low = load_shared4(row_scales + 4 * step), high = load_shared4(row_scales + next_row + 4 * step);
    const float4 near = load_shared4(tile_scales + 4 * step);
    const float4 far = S::GATED ? load_shared4(tile_scales + 4 * (padded(p.steps) + step)) : near;
    const float rows[2][SPAN] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
    const float scales[2][SPAN] = {{near.x, near.y, near.z, near.w}, {far.x, far.y, far.z, far.w}};
#pragma unroll
    for (int i = 0; i < SPAN; ++i) {
      if (step + i >= p.steps) break;
#pragma unroll
      for (int n = 0; n < S::N / 8; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          acc[4 * n + j] =
              __fmaf_rn(d[s][i][4 * n + j], rows[j / 2][i] * scales[S::GATED ? n % 2 : 0][i], acc[4 * n + j]);
    }
  };
  for (int t = 0; t < tiles; ++t) {
    const uint32_t tile_scales = shared + at.tile_scales + 4 * t * padded(p.steps);
#pragma unroll
    for (int j = 0; j < S::N / 2; ++j) acc[j] = 0.f;
    int step = 0;
    if constexpr (S::SETS == 2) {
      for (; step + SPAN < p.steps; step += 2 * SPAN) {
        issue(0);
        issue(1);
        wgmma_wait<1>();
        fold(0, step, tile_scales);
        wgmma_wait<0>();
        fold(1, step + SPAN, tile_scales);
      }
    }
    for (; step < p.steps; step += SPAN) {
      issue(0);
      wgmma_wait<0>();
      fold(0, step, tile_scales);
    }
    if constexpr (S::GATED) {
      cluster_wait();  // until the other blocks are known to run
      store_gated<S>(p, acc, shared + at.maxima, row, lane);
    } else if (has_rows) {
      store_pairs<S::N>(p, acc, row, (blockIdx.x + t * gridDim.x) * S::N + lane % 4 * 2);
    }
  }
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1)
few_rows(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map, const Problem p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const Layout at(p, S::N);
  const uint32_t full = shared_address(shared) + at.full;
  const int all = (p.outputs + S::N - 1) / S::N, tiles = (all - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
  if (threadIdx.x == S::CONSUMERS) {
    prefetch_map(x_map);
    prefetch_map(w_map);
    for (int i = 0; i < p.stages; ++i) {
      mbarrier_init(full + 8 * i, 1);
      mbarrier_init(full + 8 * (p.stages + i), 4);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if constexpr (S::GATED) cluster_arrive();
  grid_dependency_launch();
  if (threadIdx.x < S::CONSUMERS) {
    consume<S>(p, at, shared, tiles);
  } else {
    if (threadIdx.x == S::CONSUMERS) produce<S>(x_map, w_map, p, at, shared_address(shared), tiles);
    if constexpr (S::GATED) {
      __syncwarp();
      cluster_wait();
      cluster_arrive();
      cluster_wait();
    }
  }
}

// --- host

constexpr int SHARED_LIMIT = 232448, BESIDE_LIMIT = 112 << 10, MOST_STAGES = 16, FEWEST_STAGES = 4;

// A map of e4m3 [rows, inputs] for boxes of SPAN steps of 128 inputs by box_rows rows.
bool make_box_map(CUtensorMap* map, const void* data, int inputs, int rows, int box_rows) {
  const cuuint64_t size[3] = {128, (cuuint64_t)rows, (cuuint64_t)inputs / 128}, stride[2] = {(cuuint64_t)inputs, 128};
  const cuuint32_t box[3] = {128, (cuuint32_t)box_rows, SPAN};
  return make_map(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, data, size, stride, box);
}

template <class S>
int launch(const void* x, const void* w, Problem p, int programs, bool is_early, cudaStream_t stream) {
  const int tiles = (p.outputs + S::N - 1) / S::N, inputs = 128 * p.steps;
  const int grid = S::GATED ? tiles : min(tiles, programs);
  p.box_rows = (p.rows + 7) / 8 * 8;
  p.most_tiles = S::GATED ? 2 : (tiles + grid - 1) / grid;
  p.stages = 0;
  const int rest = Layout(p, S::N).bytes, stage = SPAN * 128 * (p.box_rows + S::N) + 16;
  const int beside = (BESIDE_LIMIT - rest) / stage, most = (SHARED_LIMIT - rest) / stage;
  p.stages = min(MOST_STAGES, beside >= FEWEST_STAGES ? beside : most);
  if (p.rows > MOST_ROWS || p.stages < 2) return cudaErrorInvalidValue;
  // Short inputs need no more than all of theirs.
  p.stages = min(p.stages, max(2, (p.steps + SPAN - 1) / SPAN * (S::GATED ? 1 : p.most_tiles)));
  CUtensorMap x_map, w_map;
  if (!make_box_map(&x_map, x, inputs, p.rows, p.box_rows) || !make_box_map(&w_map, w, inputs, p.outputs, S::N))
    return cudaErrorInvalidValue;
  const auto kernel = few_rows<S>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_LIMIT);
  if (error) return error;
  return launch_clusters(kernel, S::CLUSTER, grid, S::THREADS, Layout(p, S::N).bytes, is_early, stream, x_map, w_map, p);
}

Problem problem(const void* row_scale, const void* tile_scale, const void* base, void* y, int rows, int outputs,
                int inputs) {
  Problem p{};
  p.row_scale = (const float*)row_scale;
  p.tile_scale = (const float*)tile_scale;
  p.base = (const float*)base;
  p.y = y;
  p.rows = rows;
  p.outputs = outputs;
  p.steps = inputs / 128;
  return p;
}

// Up to 64 rows.
extern "C" int fp8_multiply_few(const void* x, const void* row_scale, const void* w, const void* tile_scale,
                                const void* base, void* y, int rows, int outputs, int inputs, int is_float,
                                int programs, int is_early, void* stream) {
  Problem p = problem(row_scale, tile_scale, base, y, rows, outputs, inputs);
  p.is_float = is_float;
  return launch<Shape<32>>(x, w, p, programs, is_early, (cudaStream_t)stream);
}

// Weights in eights of gate and eights of up, outputs a multiple of 256; base and tile_scale have gates, then ups.
extern "C" int fp8_multiply_gated_few(const void* x, const void* row_scale, const void* w, const void* tile_scale,
                                      const void* base, const void* row_weight, const void* picks, void* y,
                                      void* y_scale, int rows, int outputs, int inputs, float limit, int is_early,
                                      void* stream) {
  Problem p = problem(row_scale, tile_scale, base, y, rows, outputs, inputs);
  p.row_weight = (const float*)row_weight;
  p.picks = (const int*)picks;
  p.y_scale = (float*)y_scale;
  p.limit = limit;
  return launch<Shape<64, true>>(x, w, p, 0, is_early, (cudaStream_t)stream);
}
