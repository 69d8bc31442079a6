// Products of few 16-bit rows and weights on Hopper, y[r, g, o] = sum_i x[r, g, i] w[g, o, i], in the order of `schedule.py`.
//
// The weight is the tensor core's first operand and the rows are its second, as in kernel.py, and terms are added in the
// same order, so both give the same bits. One thread has the copy engine fill a ring of stages; two warpgroups multiply.
//   MODE CHAIN: one segment, one chain of products. A program goes on to its next tile without emptying the ring.
//   MODE SPREAD: a program of a cluster takes EACH segments; all add their sums in order through shared memory. The first
//   adds its own before.
// Many rows: wide.cu.
#include "operands.cuh"

using namespace hopper;

namespace products {

constexpr int CHAIN = 0, SPREAD = 1;
constexpr int GROUPS = 2;              // warpgroups that multiply
constexpr int THREADS = 128 * (GROUPS + 1);
constexpr int MOST_SPREAD = 8;         // segments of a cluster
constexpr int TOGETHER = 8;            // row tiles that share weights while these are in the second-level cache

struct Shape {
  int rows, outputs, groups, steps, segments;  // steps: stages of one segment
  long y_row, y_group;
};

__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
struct Tile { int row, output, group; };

template <int BLOCKS, int N> struct Sizes {
  static constexpr int OUTPUTS = 64 * GROUPS * BLOCKS;
  static constexpr int W_BYTES = OUTPUTS * STEP * 2, X_BYTES = N * STEP * 2, STAGE = W_BYTES + X_BYTES;
  static constexpr int SUM_ROW = OUTPUTS + 4;  // floats; the four keep the rows of a warp in different banks
};

template <int BLOCKS, int N> __device__ __forceinline__ Tile tile_at(int number, const Shape& s) {
  const int output_tiles = (s.outputs + Sizes<BLOCKS, N>::OUTPUTS - 1) / Sizes<BLOCKS, N>::OUTPUTS;
  const int row_tiles = (s.rows + N - 1) / N, a_group = output_tiles * row_tiles;
  const int group = number / a_group, place = number % a_group;
  const int first = place / (TOGETHER * output_tiles) * TOGETHER, band = min(row_tiles - first, TOGETHER);
  const int rest = place % (TOGETHER * output_tiles);
  return {(first + rest % band) * N, rest / band * Sizes<BLOCKS, N>::OUTPUTS, group};
}

template <int BLOCKS, int N, int STAGES, int MODE, int EACH, typename Y>
__global__ void __launch_bounds__(THREADS) product(const __grid_constant__ CUtensorMap w_map,
                                                   const __grid_constant__ CUtensorMap x_map, Y* y, const Shape s) {
  using Size = Sizes<BLOCKS, N>;
  extern __shared__ uint8_t raw[];
  const uint32_t base = (shared_address(raw) + 1023) & ~1023u;
  __shared__ alignas(8) uint64_t barriers[2 * STAGES];
  const uint32_t full = shared_address(barriers), empty = full + 8 * STAGES;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp / 4;
  const int peers = s.segments / EACH, rank = MODE == SPREAD ? blockIdx.x % peers : 0;
  const int first_tile = MODE == SPREAD ? blockIdx.x / peers : blockIdx.x;
  const int stride = MODE == SPREAD ? 1 << 30 : gridDim.x;
  const int tiles = s.groups * ((s.rows + N - 1) / N) * ((s.outputs + Size::OUTPUTS - 1) / Size::OUTPUTS);
  const int first_step = rank * EACH * s.steps, steps = s.steps * EACH;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      mbarrier_init(full + 8 * i, 1);
      mbarrier_init(empty + 8 * i, GROUPS);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (part == GROUPS) {
    if (BLOCKS * N >= 256) give_registers<24>();
    if (warp == 4 * GROUPS && lane == 0) {
      int stage = 0, phase = 1;
      for (int number = first_tile; number < tiles; number += stride) {
        const Tile tile = tile_at<BLOCKS, N>(number, s);
        for (int k = 0; k < steps; ++k) {
          mbarrier_wait(empty + 8 * stage, phase);
          mbarrier_arrive_expect(full + 8 * stage, Size::STAGE);
          const uint32_t at = base + stage * Size::STAGE;
          const int input = (first_step + k) * STEP;
          load_box(at, &w_map, input, tile.output, tile.group, full + 8 * stage);
          load_box(at + Size::W_BYTES, &x_map, input, tile.row, tile.group, full + 8 * stage);
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
      }
    }
  } else {
    if (BLOCKS * N >= 256) take_registers<240>();
    int stage = 0, phase = 0;
    for (int number = first_tile; number < tiles; number += stride) {
      const Tile tile = tile_at<BLOCKS, N>(number, s);
      float d[EACH][BLOCKS][N / 2];
      int previous = -1;
      const auto run = [&](float (&sum)[BLOCKS][N / 2]) {
        for (int k = 0; k < s.steps; ++k) {
          mbarrier_wait(full + 8 * stage, phase);
          const uint32_t at = base + stage * Size::STAGE, own = at + part * BLOCKS * 64 * STEP * 2;
#pragma unroll
          for (int b = 0; b < BLOCKS; ++b) wgmma_hold(sum[b]);
          wgmma_fence();
#pragma unroll
          for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
            for (int i = 0; i < STEP / 16; ++i)
              multiply<N>(sum[b], wgmma_swizzled(own + b * 64 * STEP * 2 + 32 * i),
                          wgmma_swizzled(at + Size::W_BYTES + 32 * i), k > 0 || i > 0);
          wgmma_commit();
          if (previous >= 0) {
            wgmma_wait<1>();
            if (threadIdx.x % 128 == 0) mbarrier_arrive(empty + 8 * previous);
          }
          previous = stage;
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
      };
#pragma unroll
      for (int own = 0; own < EACH; ++own) run(d[own]);
      wgmma_wait<0>();
      if (threadIdx.x % 128 == 0 && previous >= 0) mbarrier_arrive(empty + 8 * previous);
      // The sums will lie where the ring is: both warpgroups must have read it.
      if (MODE == SPREAD) named_barrier_sync(1, 128 * GROUPS);
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b) {
#pragma unroll
        for (int own = 0; own < EACH; ++own) wgmma_hold(d[own][b]);
        const int output = (part * BLOCKS + b) * 64 + warp % 4 * 16 + lane / 4;
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
          const int row = i / 4 * 8 + lane % 4 * 2 + i % 2, at = output + i % 4 / 2 * 8;
          if (MODE == SPREAD) {
            if (EACH > 1 && rank == 0) {
#pragma unroll
              for (int own = 1; own < EACH; ++own) d[0][b][i] += d[own][b][i];
            }
            float* sums = reinterpret_cast<float*>(raw + (base - shared_address(raw)));
#pragma unroll
            for (int own = 0; own < EACH; ++own) sums[(own * N + row) * Size::SUM_ROW + at] = d[own][b][i];
          } else if (tile.row + row < s.rows && tile.output + at < s.outputs) {
            put(y + (tile.row + row) * s.y_row + tile.group * s.y_group + tile.output + at,
                d[0][b][i] + 0.0f);
          }
        }
      }
    }
  }
  if (MODE == SPREAD) {
    __syncwarp();
    cluster_sync();
    const Tile tile = tile_at<BLOCKS, N>(first_tile, s);
    // Four outputs a thread at a time.
    constexpr int FOURS = Size::OUTPUTS / 4;
    for (int place = threadIdx.x + rank * THREADS; place < N * FOURS; place += THREADS * peers) {
      const int row = place / FOURS, at = place % FOURS * 4;
      if (tile.row + row >= s.rows || tile.output + at >= s.outputs) continue;
      float4 sums[MOST_SPREAD];
      const auto is_apart = [](int segment) { return segment == 0 || segment >= EACH; };
      // All on their way before the first is added.
#pragma unroll
      for (int segment = 0; segment < MOST_SPREAD; ++segment)
        if (segment < s.segments && is_apart(segment))
          sums[segment] = read_shared_at(base + ((segment % EACH * N + row) * Size::SUM_ROW + at) * 4, segment / EACH);
      float total[4] = {};
#pragma unroll
      for (int segment = 0; segment < MOST_SPREAD; ++segment)
        if (segment < s.segments && is_apart(segment)) {
          total[0] += sums[segment].x, total[1] += sums[segment].y;
          total[2] += sums[segment].z, total[3] += sums[segment].w;
        }
      put_four(y + (tile.row + row) * s.y_row + tile.group * s.y_group + tile.output + at, total,
               s.outputs - tile.output - at, s.outputs % 4 == 0);
    }
    cluster_sync();
  }
}

template <int BLOCKS, int N, int STAGES, int MODE, int EACH, typename Y>
int launch(const Operands& o, const Shape& s, int processors, cudaStream_t stream) {
  using Size = Sizes<BLOCKS, N>;
  constexpr int SUMS = MODE == SPREAD ? EACH * N * Size::SUM_ROW * 4 : 0;
  constexpr int BYTES = 1024 + (STAGES * Size::STAGE > SUMS ? STAGES * Size::STAGE : SUMS);
  static_assert(BYTES <= 227 * 1024 - 512, "the ring does not fit");
  CUtensorMap w_map, x_map;
  if (int error = describe(&w_map, o.w, o.inputs, s.outputs, s.groups, o.w_row, o.w_group, Size::OUTPUTS)) return error;
  if (int error = describe(&x_map, o.x, o.inputs, s.rows, s.groups, o.x_row, o.x_group, N)) return error;
  const auto kernel = product<BLOCKS, N, STAGES, MODE, EACH, Y>;
  // Every time: the limit is a device's, and a process may have several.
  if (int error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES)) return error;
  const int tiles = s.groups * ((s.rows + N - 1) / N) * ((s.outputs + Size::OUTPUTS - 1) / Size::OUTPUTS);
  const int resident = BYTES <= 113 * 1024 ? 2 : 1;
  const int cluster = MODE == SPREAD ? s.segments / EACH : 1;
  const int grid = MODE == SPREAD ? tiles * cluster : min(tiles, processors * resident);
  return launch_clusters(kernel, cluster, grid, THREADS, BYTES, false, stream, w_map, x_map, static_cast<Y*>(o.y), s);
}

template <int EACH, typename Y>
int spread(const Operands& o, const Shape& s, int processors, cudaStream_t stream) {
  if (s.rows <= 16) return launch<1, 16, 5, SPREAD, EACH, Y>(o, s, processors, stream);
  if (s.rows <= 32) return launch<1, 32, 5, SPREAD, EACH, Y>(o, s, processors, stream);
  if (s.rows <= 64) return launch<1, 64, 4, SPREAD, EACH, Y>(o, s, processors, stream);
  if constexpr (EACH < 4) return launch<1, 128, 6, SPREAD, EACH, Y>(o, s, processors, stream);
  return cudaErrorInvalidValue;
}

template <typename Y> int choose(const Operands& o, const Shape& s, int each, int processors, cudaStream_t stream) {
  if (s.segments == 1) {
    if (s.rows <= 16) return launch<1, 16, 6, CHAIN, 1, Y>(o, s, processors, stream);
    if (s.rows <= 32) return launch<1, 32, 5, CHAIN, 1, Y>(o, s, processors, stream);
    if (s.rows <= 64) return launch<2, 64, 5, CHAIN, 1, Y>(o, s, processors, stream);
    return launch<2, 128, 4, CHAIN, 1, Y>(o, s, processors, stream);
  }
  if (each == 1) return spread<1, Y>(o, s, processors, stream);
  if (each == 2) return spread<2, Y>(o, s, processors, stream);
  if (each == 4) return spread<4, Y>(o, s, processors, stream);
  return cudaErrorInvalidValue;
}

}  // namespace products

using namespace products;

// x [R, G, I] and w [G, O, I] bf16, strides in elements, multiples of 8, inputs contiguous; y [R, G, O] contiguous.
// I = segments * steps * 64, but the last segment may be short: what lies outside is zero. `each`: segments, a power of
// two, that a program takes; 0: all of them.
extern "C" int multiply_bf16(const void* x, const void* w, void* y, int is_wide, long rows, long groups, long outputs,
                             long inputs, long x_row, long x_group, long w_row, long w_group, int segments, int steps,
                             int each, int processors, void* stream) {
  const Operands o = {x, w, y, inputs, x_row, x_group, w_row, w_group};
  const Shape s = {(int)rows, (int)outputs, (int)groups, steps, segments, groups * outputs, outputs};
  const auto on = static_cast<cudaStream_t>(stream);
  return is_wide ? choose<float>(o, s, each, processors, on)
                 : choose<__nv_bfloat16>(o, s, each, processors, on);
}
