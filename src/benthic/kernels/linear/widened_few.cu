// bfloat16 rows times FP8 weights by group, rounded to FP8: what widened.py multiplies, streamed for few rows.
//
// Order, as there: from acc = 0, for each 128 of K ascending, acc = fma(d, tile scale, acc), d one chain of eight bf16
// wgmma over these 128, the codes widened in registers. No d waits for another, so two warpgroups form them by turns,
// two steps each, and the first adds all of them in order. Then acc is rounded to bfloat16, and these to e4m3 with a
// power of two for each 128 outputs.
//
// A block has 64 outputs of one group, the weight's rows on the tensor core's side of 64, and all rows on the other;
// two blocks are a cluster and share a scale. One warp copies boxes of two steps into a ring by TMA.
#include <cuda_bf16.h>
#include "hopper.cuh"
#include "rounding.cuh"

using namespace hopper;

constexpr int SPAN = 2, OUTPUTS = 64, CONSUMERS = 256, THREADS = CONSUMERS + 32, STAGES = 5, SLOTS = 2;

struct Problem {
  const float* tile_scale;  // [groups, outputs / 128, steps]
  uint8_t* y;               // [rows, groups * outputs]
  float* y_scale;           // [rows, groups * outputs / 128]
  int rows, groups, outputs, steps;
};

template <int N> struct Layout {  // of shared memory, N rows of x
  static constexpr int X_BYTES = SPAN * 256 * N, W_BYTES = SPAN * 128 * OUTPUTS;
  static constexpr int X = STAGES * W_BYTES, MAXIMA = X + STAGES * X_BYTES, GIVEN = MAXIMA + 8 * N * 4;
  static constexpr int GIVEN_BYTES = SPAN * N / 2 * 128 * 4;  // of one slot: what the second warpgroup gives to the first
  static constexpr int FULL = GIVEN + SLOTS * GIVEN_BYTES, GIVEN_FULL = FULL + 16 * STAGES;
  static constexpr int SCALES = GIVEN_FULL + 16 * SLOTS;
};

__device__ __forceinline__ void load_codes(uint32_t target, const CUtensorMap& map, int row, int step,
                                           uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;"
      ::"r"(target), "l"(&map), "r"(0), "r"(row), "r"(step), "r"(barrier), "l"(policy) : "memory");
}
__device__ __forceinline__ void load_rows(uint32_t target, const CUtensorMap& map, int step, int group,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2, %3, %4}], [%5];"
      ::"r"(target), "l"(&map), "r"(0), "r"(2 * step), "r"(group), "r"(barrier) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t target, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(target), "f"(value) : "memory");
}

// --- bf16 products of 64 outputs x N rows x 16 of K; weights in registers, rows in shared memory in 128-byte swizzle
#define PRODUCT(N, A0, A1, A2, A3, B, P, REGS, ...) \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N \
               "k16.f32.bf16.bf16 {" REGS "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 0;\n}" \
               : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds))

template <int N> __device__ __forceinline__ void product(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int adds) {
  if constexpr (N == 8) PRODUCT(8, 4, 5, 6, 7, 8, 9, "%0, %1, %2, %3", FLOATS(d, 0));
  if constexpr (N == 16) PRODUCT(16, 8, 9, 10, 11, 12, 13, "%0, %1, %2, %3, %4, %5, %6, %7", FLOATS(d, 0), FLOATS(d, 4));
  if constexpr (N == 32) PRODUCT(32, 16, 17, 18, 19, 20, 21, REGS_0, FLOATS_16(d, 0));
}

// Two e4m3 codes as bfloat16: their bits with the exponent 120 too small, which a product puts right, denormals too.
__device__ __forceinline__ uint32_t widened(uint32_t address) {
  uint16_t pair;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(pair) : "r"(address) : "memory");
  const uint32_t spread = __byte_perm(pair, 0, 0x1404);
  const uint32_t bits = (spread & 0x80008000) | (spread & 0x7F007F00) >> 4;
  uint32_t value;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(value) : "r"(bits), "r"(0x7B807B80));
  return value;
}

template <int N>
__device__ __forceinline__ void produce(const CUtensorMap& x_map, const CUtensorMap& w_map, const Problem& p,
                                        uint32_t shared) {
  using L = Layout<N>;
  const uint64_t policy = evict_first_policy();
  const int items = p.steps / SPAN, ahead = min(STAGES, items), group = blockIdx.x / (p.outputs / OUTPUTS);
  const uint32_t full = shared + L::FULL, empty = full + 8 * STAGES;
  auto load_w = [&](int item, int stage) {
    mbarrier_arrive_expect(full + 8 * stage, L::X_BYTES + L::W_BYTES);
    load_codes(shared + stage * L::W_BYTES, w_map, blockIdx.x * OUTPUTS, item * SPAN, full + 8 * stage, policy);
  };
  for (int i = 0; i < ahead; ++i) load_w(i, i);  // weights do not wait for the kernel before
  grid_dependency_wait();
  int stage = 0;
  uint32_t phase = 1;
  for (int i = 0; i < items; ++i) {
    if (i >= ahead) {
      mbarrier_wait(empty + 8 * stage, phase);
      load_w(i, stage);
    }
    load_rows(shared + L::X + stage * L::X_BYTES, x_map, i * SPAN, group, full + 8 * stage);
    if (++stage == STAGES) { stage = 0; phase ^= 1; }
  }
}

template <int N> __device__ __forceinline__ void round_and_store(const Problem& p, const float (&acc)[N / 2],
                                                                 uint32_t maxima) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = blockIdx.x % 2;
  float value[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) value[i] = __bfloat162float(__float2bfloat16_rn(acc[i]));
  cluster_wait();  // until the other block is known to run
#pragma unroll
  for (int n = 0; n < N / 8; ++n)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      int most = max(__float_as_int(fabsf(value[4 * n + j])), __float_as_int(fabsf(value[4 * n + 2 + j])));
#pragma unroll
      for (int other = 4; other < 32; other *= 2) most = max(most, __shfl_xor_sync(~0u, most, other));
      if (lane / 4 < 2) store_at(maxima + 4 * ((4 * rank + warp) * N + 8 * n + lane % 4 * 2 + j), lane / 4, most);
    }
  cluster_arrive();
  cluster_wait();
  const size_t width = (size_t)p.groups * p.outputs, output = (size_t)blockIdx.x * OUTPUTS + 16 * warp + lane / 4;
#pragma unroll
  for (int n = 0; n < N / 8; ++n)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = 8 * n + lane % 4 * 2 + j;
      if (row >= p.rows) continue;
      int most = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) most = max(most, __float_as_int(load_shared(maxima + 4 * (i * N + row))));
      const float scale = power_of_two_scale(most);
      if (rank == 0 && threadIdx.x < 4) p.y_scale[row * (width / 128) + blockIdx.x / 2] = scale;
      uint16_t pair;
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
          : "=h"(pair) : "f"(value[4 * n + 2 + j] / scale), "f"(value[4 * n + j] / scale));
      p.y[row * width + output] = (uint8_t)pair;
      p.y[row * width + output + 8] = (uint8_t)(pair >> 8);
    }
}

// The products of every second stage: the first warpgroup adds them, the second gives them to the first.
template <int N> struct Maker {
  using L = Layout<N>;
  const uint32_t shared, codes_at;
  const int lane, in_eight;
  int stage;
  uint32_t phase = 0, a[SPAN][8][4];
  float d[SPAN][N / 2];
  __device__ Maker(uint32_t shared_, int side, int warp, int lane_)
      : shared(shared_), codes_at(shared_ + (16 * warp + lane_ / 4) * 128 + lane_ % 4 * 2), lane(lane_),
        in_eight(lane_ / 4), stage(side) {
#pragma unroll
    for (int j = 0; j < N / 2; ++j) d[0][j] = d[1][j] = 0.f;
  }
  __device__ __forceinline__ void make(int half) {
    const uint32_t at = codes_at + stage * L::W_BYTES + half * 128 * OUTPUTS;
#pragma unroll
    for (int k = 0; k < 8; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)  // output g or g + 8; inputs 2t or 2t + 8 of each 16
        a[half][k][i] = widened(at + i % 2 * 1024 + ((k ^ in_eight) << 4) + i / 2 * 8);
    const uint64_t b = wgmma_swizzled(shared + L::X + stage * L::X_BYTES + half * 256 * N);
    wgmma_hold(d[half]);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k) product<N>(d[half], a[half][k], b + k / 4 * 8 * N + k % 4 * 2, k > 0);
    wgmma_commit();
  }
  __device__ __forceinline__ void begin() {
    mbarrier_wait(shared + L::FULL + 8 * stage, phase);
    make(0);
    make(1);
  }
  __device__ __forceinline__ void end() {
    wgmma_wait<0>();
    wgmma_hold(d[0]);
    wgmma_hold(d[1]);
    if (lane == 0) mbarrier_arrive(shared + L::FULL + 8 * (STAGES + stage));
    stage += 2;
    if (stage >= STAGES) { stage -= STAGES; phase ^= 1; }
  }
};

template <int N> __device__ __forceinline__ void give(const Problem& p, uint32_t shared, int warp, int lane) {
  using L = Layout<N>;
  Maker<N> maker(shared, 1, warp, lane);
  for (int turn = 0; turn < p.steps / 4; ++turn) {
    const int slot = turn % SLOTS;
    maker.begin();
    maker.end();
    mbarrier_wait(shared + L::GIVEN_FULL + 8 * (SLOTS + slot), turn / SLOTS % 2 ^ 1);
    const uint32_t target = shared + L::GIVEN + slot * L::GIVEN_BYTES + 4 * (32 * warp + lane);
#pragma unroll
    for (int half = 0; half < SPAN; ++half)
#pragma unroll
      for (int j = 0; j < N / 2; ++j) store_shared(target + (half * N / 2 + j) * 512, maker.d[half][j]);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + L::GIVEN_FULL + 8 * slot);
  }
}

template <int N> __device__ __forceinline__ void add(const Problem& p, uint8_t* shared_bytes, int warp, int lane) {
  using L = Layout<N>;
  const uint32_t shared = shared_address(shared_bytes);
  float* scales = (float*)(shared_bytes + L::SCALES);
  for (int i = threadIdx.x; i < p.steps; i += 128) scales[i] = p.tile_scale[blockIdx.x / 2 * p.steps + i];
  grid_dependency_wait();
  named_barrier_sync(1, 128);
  float acc[N / 2];
#pragma unroll
  for (int j = 0; j < N / 2; ++j) acc[j] = 0.f;
  auto take = [&](int turn) {
    const int slot = turn % SLOTS;
    mbarrier_wait(shared + L::GIVEN_FULL + 8 * slot, turn / SLOTS % 2);
    const uint32_t source = shared + L::GIVEN + slot * L::GIVEN_BYTES + 4 * threadIdx.x;
#pragma unroll
    for (int half = 0; half < SPAN; ++half)
#pragma unroll
      for (int j = 0; j < N / 2; ++j)
        acc[j] = __fmaf_rn(load_shared(source + (half * N / 2 + j) * 512), scales[4 * turn + 2 + half], acc[j]);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + L::GIVEN_FULL + 8 * (SLOTS + slot));
  };
  Maker<N> maker(shared, 0, warp, lane);
  const int turns = p.steps / 4;
  for (int turn = 0; turn < turns; ++turn) {
    maker.begin();
    if (turn) take(turn - 1);
    maker.end();
#pragma unroll
    for (int half = 0; half < SPAN; ++half)
#pragma unroll
      for (int j = 0; j < N / 2; ++j) acc[j] = __fmaf_rn(maker.d[half][j], scales[4 * turn + half], acc[j]);
  }
  take(turns - 1);
  round_and_store<N>(p, acc, shared + L::MAXIMA);
}

template <int N>
__global__ void __launch_bounds__(THREADS, 1)
widened_few(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map, const Problem p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t full = shared_address(shared) + Layout<N>::FULL;
  if (threadIdx.x == CONSUMERS) {
    prefetch_map(x_map);
    prefetch_map(w_map);
    for (int i = 0; i < STAGES; ++i) {
      mbarrier_init(full + 8 * i, 1);
      mbarrier_init(full + 8 * (STAGES + i), 4);
    }
    for (int i = 0; i < 2 * SLOTS; ++i) mbarrier_init(shared_address(shared) + Layout<N>::GIVEN_FULL + 8 * i, 4);
    fence_barrier_init();
  }
  __syncthreads();
  cluster_arrive();
  grid_dependency_launch();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp < 4) {
    add<N>(p, shared, warp, lane);
  } else {
    if (warp < 8) give<N>(p, shared_address(shared), warp - 4, lane);
    else if (lane == 0) produce<N>(x_map, w_map, p, shared_address(shared));
    __syncwarp();
    cluster_wait();
    cluster_arrive();
    cluster_wait();
  }
}

// --- host

template <int N>
int launch(const void* x, const void* w, const Problem& p, long long x_row, long long x_group, cudaStream_t stream) {
  const cuuint64_t inputs = 128ull * p.steps, all = (cuuint64_t)p.groups * p.outputs;
  const cuuint64_t w_size[3] = {128, all, (cuuint64_t)p.steps}, w_stride[2] = {inputs, 128};
  const cuuint32_t w_box[3] = {128, OUTPUTS, SPAN};
  // Rows as [64 inputs][row][64s of inputs][group].
  const cuuint64_t x_size[4] = {64, (cuuint64_t)p.rows, inputs / 64, (cuuint64_t)p.groups};
  const cuuint64_t x_stride[3] = {2ull * x_row, 128, 2ull * x_group};
  const cuuint32_t x_box[4] = {64, N, 2 * SPAN, 1};
  CUtensorMap x_map, w_map;
  if (!make_map(&w_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, w, w_size, w_stride, w_box) ||
      !make_map(&x_map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, x, x_size, x_stride, x_box))
    return cudaErrorInvalidValue;
  const auto kernel = widened_few<N>;
  const int bytes = Layout<N>::SCALES + 4 * p.steps;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error) return error;
  return launch_clusters(kernel, 2, all / OUTPUTS, THREADS, bytes, true, stream, x_map, w_map, p);
}

// x bfloat16 [rows, groups, inputs] of unit stride, its other strides multiples of 8 numbers; up to 32 rows; inputs a
// multiple of 512, outputs of 128.
extern "C" int widened_multiply_few(const void* x, const void* w, const void* tile_scale, void* y, void* y_scale,
                                    long long x_row, long long x_group, int rows, int groups, int outputs, int inputs,
                                    void* stream) {
  const Problem p{(const float*)tile_scale, (uint8_t*)y, (float*)y_scale, rows, groups, outputs, inputs / 128};
  const auto at = (cudaStream_t)stream;
  if (rows <= 8) return launch<8>(x, w, p, x_row, x_group, at);
  if (rows <= 16) return launch<16>(x, w, p, x_row, x_group, at);
  if (rows <= 32) return launch<32>(x, w, p, x_row, x_group, at);
  return cudaErrorInvalidValue;
}
