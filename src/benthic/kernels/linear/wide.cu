// Products of many 16-bit rows, y[r, g, o] = sum_i x[r, g, i] w[g, o, i], in the order and with the bits of product.cu.
//
// Two blocks of a cluster make 256 outputs of N rows: each copies its 128 outputs of the weight and half of the rows,
// the latter to both. Segments follow one another in one ring: while a warpgroup adds a segment's sum to its total, the
// other's products keep the tensor core busy. Blocks walk over tiles without emptying the ring, and results leave
// through shared memory, so that they are written in whole lines.
//   MODE CHAIN: one segment.
//   MODE FOLD: several segments; each is summed from zero and added to the total in registers.
//   MODE HALVES: for few tiles. Both blocks make the same 128 outputs; one takes the first half of the segments and adds
//   them, the other takes the second half and keeps each sum apart until it has the first one's total.
#include "operands.cuh"

using namespace hopper;

namespace products {

constexpr int CHAIN = 0, FOLD = 1, HALVES = 2;
constexpr int GROUPS = 2;    // warpgroups that multiply
constexpr int THREADS = 128 * (GROUPS + 1);
constexpr int OUTPUTS = 64 * GROUPS;
constexpr int CLUSTER = 2;
constexpr int TOGETHER = 8;  // row tiles that share weights while these are in the second-level cache
constexpr int CHUNK = 16;    // rows that a warpgroup writes together

struct Shape {
  int rows, outputs, groups, steps, segments;  // steps: stages of one segment
  long y_row, y_group;
};

template <int N_, int MODE_, typename Y_, int HALF_ = 0> struct Form {
  using Y = Y_;
  static constexpr int N = N_, MODE = MODE_, HALF = HALF_;  // segments of a block
  static constexpr bool SHARES = MODE != HALVES;  // rows, that is
  static constexpr int TILE_OUTPUTS = SHARES ? 2 * OUTPUTS : OUTPUTS, BOX_ROWS = SHARES ? N / 2 : N;
  static constexpr int W_BYTES = OUTPUTS * STEP * 2, X_BYTES = N * STEP * 2, STAGE = W_BYTES + X_BYTES;
  // A row of a warpgroup's results; 16 bytes more keep neighbours in different banks.
  static constexpr int ROW = 64 * sizeof(Y) + 16;
  static constexpr int SUMS = OUTPUTS * N * 4;  // one segment's, parked; results leave through them in HALVES
  static constexpr int BESIDE = MODE == HALVES ? SUMS : GROUPS * 2 * CHUNK * ROW;
  static constexpr int STAGES = (226 * 1024 - 1024 - BESIDE) / STAGE;
  static constexpr int BYTES = 1024 + STAGES * STAGE + BESIDE;
};

struct Tile { int row, output, group; };

template <class F> __device__ __forceinline__ Tile tile_at(int number, const Shape& s, int rank) {
  const int columns = (s.outputs + F::TILE_OUTPUTS - 1) / F::TILE_OUTPUTS, bands = (s.rows + F::N - 1) / F::N;
  const int group = number / (columns * bands), place = number % (columns * bands);
  const int first = place / (TOGETHER * columns) * TOGETHER, band = min(bands - first, TOGETHER);
  const int rest = place % (TOGETHER * columns);
  return {(first + rest % band) * F::N, rest / band * F::TILE_OUTPUTS + (F::SHARES ? rank * OUTPUTS : 0), group};
}
template <class F> __host__ __device__ __forceinline__ int num_tiles(const Shape& s) {
  return s.groups * ((s.rows + F::N - 1) / F::N) * ((s.outputs + F::TILE_OUTPUTS - 1) / F::TILE_OUTPUTS);
}

struct Ring {
  uint32_t at, full, empty, bytes;
  int stages, stage = 0;
  uint32_t phase = 0;
  __device__ void advance() {
    if (++stage == stages) { stage = 0; phase ^= 1; }
  }
  __device__ uint32_t w() const { return at + stage * bytes; }
  __device__ uint32_t full_at() const { return full + 8 * stage; }
};

// Arrives at the barrier of block `rank`. Nothing was written that the other would have to see.
__device__ __forceinline__ void arrive_there(uint32_t barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}"
      ::"r"(barrier), "r"(rank) : "memory");
}
__device__ __forceinline__ uint4 read_line(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
  return v;
}

// Values of 16 rows x 16 outputs of a warp, in the layout of the tensor core, to rows of outputs in shared memory.
template <class F> __device__ __forceinline__ void lay(uint32_t target, const float (&v)[8], int warp, int lane) {
  if constexpr (sizeof(typename F::Y) == 2) {
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
      pair[i] = reinterpret_cast<const uint32_t&>(two);
    }
    const uint32_t row = target + (lane / 16 * 8 + lane % 8) * F::ROW + (warp * 16 + lane / 8 % 2 * 8) * 2;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(row), "r"(pair[0]), "r"(pair[1]), "r"(pair[2]), "r"(pair[3]) : "memory");
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = i / 4 * 8 + lane % 4 * 2 + i % 2, output = warp * 16 + lane / 4 + i % 4 / 2 * 8;
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(target + row * F::ROW + output * 4), "f"(v[i]) : "memory");
    }
  }
}

// A warpgroup's 64 outputs of N rows, through two buffers of 16 rows.
template <class F>
__device__ __forceinline__ void store(typename F::Y* y, const Shape& s, const Tile& tile, const float (&v)[F::N / 2],
                                      uint32_t staging, int part) {
  using Y = typename F::Y;
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
  constexpr int LINE = 16 / sizeof(Y), LINES = 64 / LINE, PASSES = CHUNK * LINES / 128;
  const int output = tile.output + part * 64 + thread % LINES * LINE;
  const bool is_even = s.outputs % LINE == 0;
#pragma unroll
  for (int c = 0; c < F::N / CHUNK; ++c) {
    const uint32_t buffer = staging + c % 2 * CHUNK * F::ROW;
    float some[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) some[i] = v[8 * c + i];
    lay<F>(buffer, some, warp, lane);
    named_barrier_sync(1 + part, 128);
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
      const int place = pass * (128 / LINES) + thread / LINES, row = tile.row + c * CHUNK + place;
      const uint4 line = read_line(buffer + place * F::ROW + thread % LINES * 16);
      if (row >= s.rows) continue;
      Y* target = y + row * s.y_row + tile.group * s.y_group + output;
      if (is_even && output < s.outputs) {
        *reinterpret_cast<uint4*>(target) = line;
      } else {
        const Y* values = reinterpret_cast<const Y*>(&line);
#pragma unroll
        for (int i = 0; i < LINE; ++i)
          if (output + i < s.outputs) target[i] = values[i];
      }
    }
  }
}

// A thread's values of a tile wait in shared memory.
template <class F> __device__ __forceinline__ void park(uint32_t target, const float (&v)[F::N / 2]) {
#pragma unroll
  for (int i = 0; i < F::N / 8; ++i)
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"r"(target + i * 128 * 16), "f"(v[4 * i]), "f"(v[4 * i + 1]), "f"(v[4 * i + 2]), "f"(v[4 * i + 3])
                 : "memory");
}
template <class F> __device__ __forceinline__ void add_parked(float (&sum)[F::N / 2], uint32_t source) {
#pragma unroll
  for (int i = 0; i < F::N / 8; ++i) {
    const uint4 four = read_line(source + i * 128 * 16);
    sum[4 * i] += __uint_as_float(four.x), sum[4 * i + 1] += __uint_as_float(four.y);
    sum[4 * i + 2] += __uint_as_float(four.z), sum[4 * i + 3] += __uint_as_float(four.w);
    // Now, not after the other reads: registers are full.
    asm volatile("" : "+f"(sum[4 * i]), "+f"(sum[4 * i + 1]), "+f"(sum[4 * i + 2]), "+f"(sum[4 * i + 3])::"memory");
  }
}

template <class F>
__device__ __forceinline__ void produce(const CUtensorMap* w_map, const CUtensorMap* x_map, const Shape& s, Ring ring,
                                        int rank, int first_step, int steps) {
  ring.phase = 1;
  for (int number = blockIdx.x / CLUSTER; number < num_tiles<F>(s); number += gridDim.x / CLUSTER) {
    const Tile tile = tile_at<F>(number, s, rank);
    for (int k = first_step; k < first_step + steps; ++k, ring.advance()) {
      mbarrier_wait(ring.empty + 8 * ring.stage, ring.phase);
      mbarrier_arrive_expect(ring.full_at(), F::STAGE);
      load_box(ring.w(), w_map, k * STEP, tile.output, tile.group, ring.full_at());
      const uint32_t x = ring.w() + F::W_BYTES;
      if constexpr (F::SHARES)
        load_box_multicast(x + rank * F::X_BYTES / 2, x_map, k * STEP, tile.row + rank * F::BOX_ROWS, tile.group,
                           ring.full_at(), 3);
      else
        load_box(x, x_map, k * STEP, tile.row, tile.group, ring.full_at());
    }
  }
}

// One segment's sum from zero.
template <class F>
__device__ __forceinline__ void sum_segment(float (&sum)[F::N / 2], Ring& ring, int steps) {
  const int part = threadIdx.x / 128, thread = threadIdx.x % 128;
  int previous = -1;
  // A stage is free when both blocks that its rows were copied to have read it.
  const auto release = [&] {
    const uint32_t barrier = ring.empty + 8 * previous;
    if (F::SHARES && thread < CLUSTER && previous >= 0) arrive_there(barrier, thread);
    if (!F::SHARES && thread == 0 && previous >= 0) mbarrier_arrive(barrier);
  };
  for (int k = 0; k < steps; ++k) {
    mbarrier_wait(ring.full_at(), ring.phase);
    const uint64_t a = wgmma_swizzled(ring.w() + part * 64 * STEP * 2), b = wgmma_swizzled(ring.w() + F::W_BYTES);
    wgmma_hold(sum);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < STEP / 16; ++i) multiply<F::N>(sum, a + 2 * i, b + 2 * i, k > 0 || i > 0);
    wgmma_commit();
    if (previous >= 0) {
      wgmma_wait<1>();
      release();
    }
    previous = ring.stage;
    ring.advance();
  }
  wgmma_wait<0>();
  release();
  wgmma_hold(sum);
}

template <class F>
__device__ __forceinline__ void add_segments(float (&total)[F::N / 2], Ring& ring, int steps, int segments) {
#pragma unroll
  for (int i = 0; i < F::N / 2; ++i) total[i] = 0.0f;
  for (int segment = 0; segment < segments; ++segment) {
    float d[F::N / 2];
    sum_segment<F>(d, ring, steps);
#pragma unroll
    for (int i = 0; i < F::N / 2; ++i) total[i] += d[i];
  }
}

template <class F>
__device__ __forceinline__ void consume(typename F::Y* y, const Shape& s, Ring ring, uint32_t beside, int rank) {
  const int part = threadIdx.x / 128;
  if (part && s.steps > 1) mbarrier_wait(ring.full + 8, 0);  // a step behind: they should not end segments together
  for (int number = blockIdx.x / CLUSTER; number < num_tiles<F>(s); number += gridDim.x / CLUSTER) {
    const Tile tile = tile_at<F>(number, s, rank);
    float total[F::N / 2];
    if constexpr (F::MODE == CHAIN) {
      sum_segment<F>(total, ring, s.steps);
#pragma unroll
      for (int i = 0; i < F::N / 2; ++i) total[i] += 0.0f;
    } else {
      add_segments<F>(total, ring, s.steps, s.segments);
    }
    store<F>(y, s, tile, total, beside + part * 2 * CHUNK * F::ROW, part);
  }
}

// The only tile of this block, of which it has one half of the segments.
template <class F>
__device__ __forceinline__ void consume_half(typename F::Y* y, const Shape& s, Ring ring, uint32_t beside, int rank) {
  constexpr int N = F::N;
  const int part = threadIdx.x / 128, thread = threadIdx.x % 128;
  const uint32_t place = (part * N / 8 * 128 + thread) * 16, parked = beside + place;
  if (rank == 0) {
    float total[N / 2];
    add_segments<F>(total, ring, s.steps, F::HALF);
    park<F>(parked, total);
    return;
  }
  // Sums that wait: the first of four beside the ring, its second where the ring was, the last two in registers.
  float before[N / 2], last[N / 2], sum[N / 2];
  if constexpr (F::HALF == 4) {
    sum_segment<F>(sum, ring, s.steps);
    park<F>(parked, sum);
    sum_segment<F>(sum, ring, s.steps);
  }
  sum_segment<F>(before, ring, s.steps);
  sum_segment<F>(last, ring, s.steps);
  named_barrier_sync(3, 128 * GROUPS);  // both warpgroups have read the ring
  if constexpr (F::HALF == 4) park<F>(ring.at + place, sum);
  cluster_sync();
#pragma unroll
  for (int i = 0; i < N / 8; ++i) {  // all on their way before the first is needed
    const float4 four = read_shared_at(parked + i * 128 * 16, 0);
    sum[4 * i] = four.x, sum[4 * i + 1] = four.y, sum[4 * i + 2] = four.z, sum[4 * i + 3] = four.w;
  }
  wgmma_hold(sum);
  if constexpr (F::HALF == 4) {
    add_parked<F>(sum, parked);
    add_parked<F>(sum, ring.at + place);
  }
#pragma unroll
  for (int i = 0; i < N / 2; ++i) sum[i] = sum[i] + before[i] + last[i];
  named_barrier_sync(1 + part, 128);  // all have read what was parked: results leave through it
  store<F>(y, s, tile_at<F>(blockIdx.x / CLUSTER, s, rank), sum, beside + part * F::SUMS / 2, part);
}

template <class F>
__global__ void __launch_bounds__(THREADS, 1)
wide_product(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
             typename F::Y* y, const Shape s) {
  extern __shared__ uint8_t raw[];
  __shared__ alignas(8) uint64_t barriers[2 * F::STAGES];
  Ring ring;
  ring.at = (shared_address(raw) + 1023) & ~1023u;
  ring.full = shared_address(barriers), ring.empty = ring.full + 8 * F::STAGES;
  ring.bytes = F::STAGE, ring.stages = F::STAGES;
  const int rank = cluster_rank();
  if (threadIdx.x == 0) {
    prefetch_map(w_map);
    prefetch_map(x_map);
    for (int i = 0; i < F::STAGES; ++i) {
      mbarrier_init(ring.full + 8 * i, 1);
      mbarrier_init(ring.empty + 8 * i, F::SHARES ? GROUPS * CLUSTER : GROUPS);
    }
    fence_barrier_init();
  }
  cluster_sync();
  const bool is_second = F::MODE == HALVES && rank == 1;
  if (threadIdx.x >= 128 * GROUPS) {
    give_registers<40>();
    const int steps = s.steps * (F::MODE == HALVES ? s.segments / 2 : s.segments);
    if (threadIdx.x == 128 * GROUPS) produce<F>(&w_map, &x_map, s, ring, rank, is_second ? steps : 0, steps);
  } else {
    take_registers<232>();
    const uint32_t beside = ring.at + F::STAGES * F::STAGE;
    if constexpr (F::MODE == HALVES)
      consume_half<F>(y, s, ring, beside, rank);
    else
      consume<F>(y, s, ring, beside, rank);
  }
  // Sums of the first half are there. Then, until no block copies to another, arrives there or reads its sums.
  if (F::MODE == HALVES && !(is_second && threadIdx.x < 128 * GROUPS)) cluster_sync();
  cluster_sync();
}

// --- host

template <int N, int MODE, typename Y, int HALF = 0>
int launch(const Operands& o, const Shape& s, int processors, cudaStream_t stream) {
  using F = Form<N, MODE, Y, HALF>;
  CUtensorMap w_map, x_map;
  if (int error = describe(&w_map, o.w, o.inputs, s.outputs, s.groups, o.w_row, o.w_group, OUTPUTS)) return error;
  if (int error = describe(&x_map, o.x, o.inputs, s.rows, s.groups, o.x_row, o.x_group, F::BOX_ROWS)) return error;
  const auto kernel = wide_product<F>;
  // Every time: the limit is a device's, and a process may have several.
  if (int error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, F::BYTES)) return error;
  const int clusters = MODE == HALVES ? num_tiles<F>(s) : min(num_tiles<F>(s), processors / CLUSTER);
  return launch_clusters(kernel, CLUSTER, clusters * CLUSTER, THREADS, F::BYTES, false, stream, w_map, x_map,
                         static_cast<Y*>(o.y), s);
}

template <typename Y>
int choose(const Operands& o, const Shape& s, int tile_rows, int is_halved, int processors, cudaStream_t stream) {
  const bool is_chain = s.segments == 1;
  if (is_halved && s.segments == 8) return launch<128, HALVES, Y, 4>(o, s, processors, stream);
  if (is_halved && s.segments == 4) return launch<128, HALVES, Y, 2>(o, s, processors, stream);
  if (is_halved) return cudaErrorInvalidValue;
  if (is_chain && tile_rows == 256) return launch<256, CHAIN, Y>(o, s, processors, stream);
  if (is_chain && tile_rows == 192) return launch<192, CHAIN, Y>(o, s, processors, stream);
  if (tile_rows == 192) return launch<192, FOLD, Y>(o, s, processors, stream);
  if (tile_rows == 176) return launch<176, FOLD, Y>(o, s, processors, stream);
  if (tile_rows == 160) return launch<160, FOLD, Y>(o, s, processors, stream);
  if (tile_rows == 128) return launch<128, FOLD, Y>(o, s, processors, stream);
  return cudaErrorInvalidValue;
}

}  // namespace products

using namespace products;

// x [R, G, I] and w [G, O, I] bf16, strides in elements, multiples of 8, inputs contiguous; y [R, G, O] contiguous.
// I = segments * steps * 64, but the last segment may be short: what lies outside is zero. `tile_rows`: one of those in
// wide.py; `is_halved`: MODE HALVES, of 4 or 8 segments.
extern "C" int multiply_wide_bf16(const void* x, const void* w, void* y, int is_wide, long rows, long groups,
                                  long outputs, long inputs, long x_row, long x_group, long w_row, long w_group,
                                  int segments, int steps, int tile_rows, int is_halved, int processors,
                                  void* stream) {
  const Operands o = {x, w, y, inputs, x_row, x_group, w_row, w_group};
  const Shape s = {(int)rows, (int)outputs, (int)groups, steps, segments, groups * outputs, outputs};
  const auto on = static_cast<cudaStream_t>(stream);
  return is_wide ? choose<float>(o, s, tile_rows, is_halved, processors, on)
                 : choose<__nv_bfloat16>(o, s, tile_rows, is_halved, processors, on);
}
