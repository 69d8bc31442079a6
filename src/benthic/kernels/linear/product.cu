// Products of 16-bit rows and weights on Hopper, y[r, g, o] = sum_i x[r, g, i] w[g, o, i], in the order of `schedule.py`.
//
// The weight is the tensor core's first operand and the rows are its second, as in kernel.py, and terms are added in the
// same order, so both give the same bits. One thread has the copy engine fill a ring of stages; two warpgroups multiply.
//   MODE CHAIN: one segment, one chain of products. A program goes on to its next tile without emptying the ring.
//   MODE FOLD: several segments; each is summed from zero and added to the total in registers.
//   MODE SPREAD: a program of a cluster takes EACH segments; all add their sums in order through shared memory.
#include <cuda.h>
#include <cuda_bf16.h>
#include "hopper.cuh"

using namespace hopper;

namespace products {

constexpr int CHAIN = 0, FOLD = 1, SPREAD = 2;
constexpr int STEP = 64;               // inputs of a stage: 128 bytes a row, the width of the copy engine's swizzle
constexpr int GROUPS = 2;              // warpgroups that multiply
constexpr int THREADS = 128 * (GROUPS + 1);
constexpr int MOST_SPREAD = 8;         // segments of a cluster
constexpr int TOGETHER = 8;            // row tiles that share weights while these are in the second-level cache

struct Shape {
  int rows, outputs, groups, steps, segments;  // steps: stages of one segment
  long y_row, y_group;
};

// d [64 outputs, N rows] (+)= a b^T, one step of 16 inputs.
template <int N> __device__ __forceinline__ void multiply(float (&d)[N / 2], uint64_t a, uint64_t b, int adds);

template <> __device__ __forceinline__ void multiply<16>(float (&d)[8], uint64_t a, uint64_t b, int adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7"
      "}, %8, %9, p, 1, 1, 0, 0;\n}\n"
      :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "l"(a), "l"(b), "r"(adds));
}

template <> __device__ __forceinline__ void multiply<32>(float (&d)[16], uint64_t a, uint64_t b, int adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
      "}, %16, %17, p, 1, 1, 0, 0;\n}\n"
      :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "l"(a), "l"(b), "r"(adds));
}

template <> __device__ __forceinline__ void multiply<64>(float (&d)[32], uint64_t a, uint64_t b, int adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, %32, %33, p, 1, 1, 0, 0;\n}\n"
      :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b), "r"(adds));
}

template <> __device__ __forceinline__ void multiply<128>(float (&d)[64], uint64_t a, uint64_t b, int adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
      :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "l"(a), "l"(b), "r"(adds));
}

// Operand whose rows are 128 bytes wide and swizzled by the copy engine.
__device__ __forceinline__ uint64_t swizzled(uint32_t address) {
  return (uint64_t)((address & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
__device__ __forceinline__ void load_box(uint32_t target, const CUtensorMap* map, int input, int row, int group,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
      ::"r"(target), "l"(map), "r"(barrier), "r"(input), "r"(row), "r"(group) : "memory");
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ float read_peer(uint32_t address, int rank) {
  uint32_t remote;
  float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote) : "memory");
  return value;
}
__device__ __forceinline__ void put(float* y, float value) { *y = value; }
__device__ __forceinline__ void put(__nv_bfloat16* y, float value) { *y = __float2bfloat16_rn(value); }

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
  const int first_step = rank * EACH * s.steps, steps = s.steps * (MODE == FOLD ? s.segments : EACH);
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      mbarrier_init(full + 8 * i, 1);
      mbarrier_init(empty + 8 * i, GROUPS);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (part == GROUPS) {
    if (MODE == FOLD || BLOCKS * N >= 256) give_registers<24>();
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
    if (MODE == FOLD || BLOCKS * N >= 256) take_registers<240>();
    int stage = 0, phase = 0;
    for (int number = first_tile; number < tiles; number += stride) {
      const Tile tile = tile_at<BLOCKS, N>(number, s);
      // Segments take turns in two accumulators: one is added to the total while the other's products run.
      float d[MODE == FOLD ? 2 : EACH][BLOCKS][N / 2], total[MODE == FOLD ? BLOCKS : 1][MODE == FOLD ? N / 2 : 1];
      int previous = -1;
      const auto run = [&](float (&sum)[BLOCKS][N / 2], auto&& after_first) {
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
              multiply<N>(sum[b], swizzled(own + b * 64 * STEP * 2 + 32 * i), swizzled(at + Size::W_BYTES + 32 * i),
                          k > 0 || i > 0);
          wgmma_commit();
          if (previous >= 0) {
            wgmma_wait<1>();
            if (threadIdx.x % 128 == 0) mbarrier_arrive(empty + 8 * previous);
          }
          previous = stage;
          if (++stage == STAGES) stage = 0, phase ^= 1;
          if (k == 0) after_first();
        }
      };
      const auto add = [&](float (&sum)[BLOCKS][N / 2], bool is_first) {
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b) {
          wgmma_hold(sum[b]);
#pragma unroll
          for (int i = 0; i < (MODE == FOLD ? N / 2 : 0); ++i)
            total[MODE == FOLD ? b : 0][i] = (is_first ? 0.0f : total[MODE == FOLD ? b : 0][i]) + sum[b][i];
        }
      };
      if constexpr (MODE == FOLD) {
        for (int pair = 0; pair < s.segments; pair += 2) {
          run(d[0], [&] { if (pair) add(d[1], false); });
          run(d[1], [&] { add(d[0], pair == 0); });
        }
      } else {
#pragma unroll
        for (int own = 0; own < EACH; ++own) run(d[own], [] {});
      }
      wgmma_wait<0>();
      if (threadIdx.x % 128 == 0 && previous >= 0) mbarrier_arrive(empty + 8 * previous);
      if constexpr (MODE == FOLD) add(d[1], false);
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
          const float value = MODE == FOLD ? total[MODE == FOLD ? b : 0][MODE == FOLD ? i : 0] : d[0][b][i];
          if (MODE == SPREAD) {
            float* sums = reinterpret_cast<float*>(raw + (base - shared_address(raw)));
#pragma unroll
            for (int own = 0; own < EACH; ++own) sums[(own * N + row) * Size::SUM_ROW + at] = d[own][b][i];
          } else if (tile.row + row < s.rows && tile.output + at < s.outputs) {
            put(y + (tile.row + row) * s.y_row + tile.group * s.y_group + tile.output + at, value + 0.0f);
          }
        }
      }
    }
  }
  if (MODE == SPREAD) {
    __syncwarp();
    cluster_sync();
    const Tile tile = tile_at<BLOCKS, N>(first_tile, s);
    for (int place = threadIdx.x + rank * THREADS; place < N * Size::OUTPUTS; place += THREADS * peers) {
      const int row = place / Size::OUTPUTS, at = place % Size::OUTPUTS;
      if (tile.row + row >= s.rows || tile.output + at >= s.outputs) continue;
      float sums[MOST_SPREAD], total = 0.0f;
      // All on their way before the first is added.
#pragma unroll
      for (int segment = 0; segment < MOST_SPREAD; ++segment)
        if (segment < s.segments)
          sums[segment] = read_peer(base + ((segment % EACH * N + row) * Size::SUM_ROW + at) * 4, segment / EACH);
#pragma unroll
      for (int segment = 0; segment < MOST_SPREAD; ++segment)
        if (segment < s.segments) total += sums[segment];
      put(y + (tile.row + row) * s.y_row + tile.group * s.y_group + tile.output + at, total);
    }
    cluster_sync();
  }
}

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

Encode encoder() {
  static const Encode found = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result);
    return reinterpret_cast<Encode>(entry);
  }();
  return found;
}

// Boxes of `box` rows and one step of inputs; rows outside are zeros. Strides in elements.
int describe(CUtensorMap* map, const void* data, long inputs, long rows, long groups, long row, long group, int box) {
  const cuuint64_t sizes[3] = {(cuuint64_t)inputs, (cuuint64_t)rows, (cuuint64_t)groups};
  const cuuint64_t strides[2] = {(cuuint64_t)row * 2, (cuuint64_t)group * 2};
  const cuuint32_t boxes[3] = {STEP, (cuuint32_t)box, 1}, each[3] = {1, 1, 1};
  if (!encoder()) return cudaErrorNotSupported;
  return encoder()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(data), sizes, strides, boxes, each,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
             ? cudaErrorInvalidValue
             : cudaSuccess;
}

struct Operands {
  const void *x, *w;
  void* y;
  long inputs, x_row, x_group, w_row, w_group;
};

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
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = MODE == SPREAD ? s.segments / EACH : 1;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(MODE == SPREAD ? tiles * (s.segments / EACH) : min(tiles, processors * resident));
  config.blockDim = dim3(THREADS);
  config.dynamicSmemBytes = BYTES;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, w_map, x_map, static_cast<Y*>(o.y), s);
}

template <int EACH, typename Y>
int spread(const Operands& o, const Shape& s, int processors, cudaStream_t stream) {
  if (s.rows <= 16) return launch<1, 16, 5, SPREAD, EACH, Y>(o, s, processors, stream);
  if (s.rows <= 32) return launch<1, 32, 5, SPREAD, EACH, Y>(o, s, processors, stream);
  if (s.rows <= 64) return launch<1, 64, 4, SPREAD, EACH, Y>(o, s, processors, stream);
  return launch<1, 128, 6, SPREAD, EACH, Y>(o, s, processors, stream);
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
  return launch<1, 128, 6, FOLD, 1, Y>(o, s, processors, stream);
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
