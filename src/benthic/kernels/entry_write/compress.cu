// The compressor of 128 rows a block in one pass: pool, norm, turn, round, store; in decode also the rows to keep.
//
// A thread has one channel and all rows of a run, so that no sum crosses threads, and asks for 32 gates and the first values
// before it needs one. A cluster shares a block's channels out, four times 128, and meets once: for the sum of squares.
// Of many blocks two neighbours share a thread, which reads the positional bias once for both. Of single rows (decode)
// few blocks end, each of which should be short: its four runs are pooled side by side, and folded in order.
//
// Bits are those of the Triton form (compress_kernel.py) at 512 channels; pooling.cuh has the order.
#include "hopper.cuh"
#include "pooling.cuh"
#include <cuda_bf16.h>
#include <cuda_fp8.h>

namespace compress {

using hopper::named_barrier_sync;
using hopper::shared_address;

constexpr int RATIO = 128, DIM = 512, ROPE = 64, STILL = DIM - ROPE, GROUP = 64;
constexpr int SLICES = 4, COLUMNS = DIM / SLICES, RUNS = RATIO / RUN, PIECE = 8, WARPS = COLUMNS / 32;

struct Pass {
  const float *raw;
  float* rings;
  const float* ape;
  const void* gain;
  uint8_t* buffer;
  const float *cos, *sin;
  const long long *positions, *befores, *ring_of, *ends, *slots;
  long long raw_stride, ring_stride, buffer_bytes;
  int rows, blocks, ring_len, gain_is_half, rounds, packed, scale_offset, rotary_offset;
  float eps;
};

// Query heads of as many rows, normed and turned beside the entries; `product` null: none.
struct Heads {
  const __nv_bfloat16* product;
  const float *cos, *sin;
  __nv_bfloat16* query;
  long long product_stride;
  int heads;
};

__device__ __forceinline__ float read_once(const float* from) {
  float x;
  asm volatile("ld.global.L1::no_allocate.f32 %0, [%1];" : "=f"(x) : "l"(from));
  return x;
}
__device__ __forceinline__ void store_at(double* where, uint32_t rank, double value) {
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nst.shared::cluster.f64 [there], %2;\n}"
               ::"r"(shared_address(where)), "r"(rank), "d"(value) : "memory");
}

// Where the rows of one block lie, for one channel: the oldest in the ring, the others in the pass.
struct Source {
  const float *pass, *ring;
  int in_ring, slot;
};

__device__ __forceinline__ Source source_of(const Pass& a, long long end, int column) {
  const long long position = a.positions[end], before = a.befores[end];
  Source s;
  s.pass = a.raw + (end - (RATIO - 1)) * a.raw_stride + column;
  s.ring = a.rings + a.ring_of[end] * a.ring_stride + column;
  s.in_ring = before < RATIO - 1 ? RATIO - 1 - (int)before : 0;
  s.slot = (int)((position - (RATIO - 1)) % a.ring_len);
  return s;
}

// COUNT rows from `first` on of values (at 0) or gates (at DIM).
template <int COUNT>
__device__ __forceinline__ void read_rows(float* to, const Pass& a, const Source& s, int first, int at) {
  if (first >= s.in_ring) {
    const float* from = s.pass + first * a.raw_stride + at;
#pragma unroll
    for (int r = 0; r < COUNT; ++r) to[r] = read_once(from + r * a.raw_stride);
  } else {
#pragma unroll
    for (int r = 0; r < COUNT; ++r) {
      const int number = first + r, slot = s.slot + number;
      const float* kept = s.ring + (slot < a.ring_len ? slot : slot - a.ring_len) * a.ring_stride;
      to[r] = read_once((number < s.in_ring ? kept : s.pass + number * a.raw_stride) + at);
    }
  }
}

template <int TOGETHER> struct Shared {
  float top[TOGETHER][COLUMNS], total[TOGETHER][COLUMNS], mixed[TOGETHER][COLUMNS];
};

struct alignas(16) Meeting {
  double squares[2][2][SLICES];  // by turn and block: of each slice of the channels
  double part[2][WARPS];
  uint32_t largest[2][WARPS];
};

// One run of BLOCKS blocks: gates with their bias, values a piece ahead. `top` is the maximum before the run, or, where
// runs are pooled side by side, found with `meet`, which tells it the run's own; after it, with the run.
template <int BLOCKS, typename Meet>
__device__ __forceinline__ void pool_run(Parts (&parts)[BLOCKS], float (&top)[BLOCKS], const Pass& a,
                                         const Source (&from)[BLOCKS], int run, int column, Meet meet) {
  float gate[BLOCKS][RUN], value[2][BLOCKS][PIECE];
#pragma unroll
  for (int k = 0; k < BLOCKS; ++k) read_rows<RUN>(gate[k], a, from[k], run * RUN, DIM);
#pragma unroll
  for (int k = 0; k < BLOCKS; ++k) read_rows<PIECE>(value[0][k], a, from[k], run * RUN, 0);
#pragma unroll
  for (int r = 0; r < RUN; ++r) {
    const float bias = __ldg(a.ape + (run * RUN + r) * DIM + column);
#pragma unroll
    for (int k = 0; k < BLOCKS; ++k) gate[k][r] = added(gate[k][r], bias);
  }
#pragma unroll
  for (int k = 0; k < BLOCKS; ++k) {
    float highest = gate[k][0];
#pragma unroll
    for (int r = 1; r < RUN; ++r) highest = fmaxf(highest, gate[k][r]);
    top[k] = meet(top[k], highest);
  }
#pragma unroll
  for (int piece = 0; piece < RUN / PIECE; ++piece) {
    if (piece + 1 < RUN / PIECE) {
#pragma unroll
      for (int k = 0; k < BLOCKS; ++k)
        read_rows<PIECE>(value[(piece + 1) % 2][k], a, from[k], run * RUN + (piece + 1) * PIECE, 0);
    }
#pragma unroll
    for (int k = 0; k < BLOCKS; ++k) {
#pragma unroll
      for (int r = 0; r < PIECE; ++r) {
        const int row = piece * PIECE + r;
        add_row(parts[k], row, gate[k][row], value[piece % 2][k][r], top[k]);
      }
    }
  }
}

__device__ __forceinline__ float rounded(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }
// 1 / rms of 512 values from the sum of their squares, as rms_norm has it.
__device__ __forceinline__ float norm_factor(double squares, float eps) {
  float factor;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(factor) : "f"(added((float)(squares / (double)DIM), eps)));
  return factor;
}
// A pair of neighbours after rotation.
__device__ __forceinline__ float turned_first(float a, float b, float c, float s) {
  return fused(a, c, __fsub_rn(0.0f, times(b, s)));
}
__device__ __forceinline__ float turned_second(float a, float b, float c, float s) { return fused(a, s, times(b, c)); }

// Norm, rotation, rounding and storage of BLOCKS pooled rows, a channel a thread of the first 128. `turn` says which half
// of the meeting place is free. All threads of the cluster come here.
template <int BLOCKS>
__device__ __forceinline__ void finish(const Pass& a, Meeting& s, const float (&pooled)[BLOCKS],
                                       const long long (&number)[BLOCKS], const long long (&slot)[BLOCKS], int rank, int turn) {
  const int thread = threadIdx.x, warp = thread / 32, column = rank * COLUMNS + thread;
  const bool works = thread < COLUMNS;
  hopper::cluster_sync();  // all blocks of the cluster are there to be written to
  float x[BLOCKS];
  if (works) {
#pragma unroll
    for (int k = 0; k < BLOCKS; ++k) {
      x[k] = rounded(pooled[k]);
      double square = (double)x[k] * (double)x[k];
#pragma unroll
      for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(~0u, square, step);
      if (thread % 32 == 0) s.part[k][warp] = square;
    }
    named_barrier_sync(1, COLUMNS);
    if (thread < BLOCKS * SLICES) {
      const int k = thread / SLICES;
      double square = s.part[k][0];
#pragma unroll
      for (int w = 1; w < WARPS; ++w) square += s.part[k][w];
      store_at(&s.squares[turn][k][rank], thread % SLICES, square);
    }
  }
  hopper::cluster_sync();
  if (!works) return;
  float y[BLOCKS];
  const float gain = a.gain_is_half ? __bfloat162float(((const __nv_bfloat16*)a.gain)[column]) : ((const float*)a.gain)[column];
#pragma unroll
  for (int k = 0; k < BLOCKS; ++k) {
    double square = s.squares[turn][k][0];
#pragma unroll
    for (int from = 1; from < SLICES; ++from) square += s.squares[turn][k][from];
    y[k] = rounded(times(times(x[k], norm_factor(square, a.eps)), gain));
    if (rank == SLICES - 1) {  // pairs of neighbours turn
      const float beside = __shfl_xor_sync(~0u, y[k], 1);
      if (column >= STILL) {
        const long long angle = number[k] * (ROPE / 2) + (column - STILL) / 2;
        const float c = a.cos[angle], t = a.sin[angle];
        y[k] = rounded(column % 2 == 0 ? turned_first(y[k], beside, c, t) : turned_second(beside, y[k], c, t));
      }
    }
    const uint32_t size = __reduce_max_sync(~0u, __float_as_uint(y[k]) & 0x7FFFFFFFu);
    if (thread % 32 == 0) s.largest[k][warp] = size;
  }
  named_barrier_sync(1, COLUMNS);
#pragma unroll
  for (int k = 0; k < BLOCKS; ++k) {
    if (slot[k] < 0) continue;
    uint8_t* target = a.buffer + slot[k] * a.buffer_bytes;
    __nv_bfloat16* plain = (__nv_bfloat16*)target;
    if (column >= STILL || !a.rounds) {
      if (a.packed) ((__nv_bfloat16*)(target + a.rotary_offset))[column - STILL] = __float2bfloat16_rn(y[k]);
      else plain[column] = __float2bfloat16_rn(y[k]);
      continue;
    }
    const uint32_t size = max(s.largest[k][warp & ~1], s.largest[k][warp | 1]);
    const uint32_t bits = __float_as_uint(times(fmaxf(__uint_as_float(size), 1e-4f), 1.0f / 448.0f));
    const uint32_t exponent = (bits >> 23) + ((bits & 0x7FFFFFu) != 0);
    const bool is_finite = size < 0x7F800000u;
    const float scale = __uint_as_float(is_finite ? exponent << 23 : 0x7FC00000u);
    const float inverse = is_finite ? __uint_as_float(0x7F000000u - (exponent << 23)) : scale;
    const __nv_fp8_storage_t code = __nv_cvt_float_to_fp8(times(y[k], inverse), __NV_SATFINITE, __NV_E4M3);
    if (a.packed) {
      target[column] = code;
      if (column % GROUP == 0) target[a.scale_offset + column / GROUP] = (uint8_t)(__float_as_uint(scale) >> 23);
    } else {
      const float value = __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
      plain[column] = __float2bfloat16_rn(times(value, scale));
    }
  }
}

// A row's heads that this block of the cluster has, one a warp, 16 columns a lane.
__device__ __forceinline__ void turn_heads(const Heads& q, long long row, int rank, float eps) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32, column = 16 * lane;
  for (int head = rank * warps + threadIdx.x / 32; head < q.heads; head += SLICES * warps) {
    const uint4* from = (const uint4*)(q.product + row * q.product_stride + head * DIM + column);
    const uint4 packed[2] = {from[0], from[1]};
    const uint32_t words[8] = {packed[0].x, packed[0].y, packed[0].z, packed[0].w,
                               packed[1].x, packed[1].y, packed[1].z, packed[1].w};
    float x[16];
    double square = 0.0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[2 * i] = __uint_as_float(words[i] << 16), x[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
      square += (double)x[2 * i] * (double)x[2 * i] + (double)x[2 * i + 1] * (double)x[2 * i + 1];
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(~0u, square, step);
    const float factor = norm_factor(square, eps);
    uint32_t result[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float a = rounded(times(x[2 * i], factor)), b = rounded(times(x[2 * i + 1], factor));
      if (column >= STILL) {
        const long long angle = row * (ROPE / 2) + (column - STILL) / 2 + i;
        const float c = q.cos[angle], s = q.sin[angle];
        const float first = turned_first(a, b, c, s), second = turned_second(a, b, c, s);
        a = first, b = second;
      }
      const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
      result[i] = *(const uint32_t*)&pair;
    }
    uint4* to = (uint4*)(q.query + (row * q.heads + head) * DIM + column);
    to[0] = {result[0], result[1], result[2], result[3]};
    to[1] = {result[4], result[5], result[6], result[7]};
  }
}

// Cluster p: blocks 2 p and 2 p + 1.
__global__ void __cluster_dims__(SLICES, 1, 1) __launch_bounds__(COLUMNS, 4) compress_blocks(const Pass a) {
  __shared__ Meeting meeting;
  hopper::grid_dependency_wait();
  hopper::grid_dependency_launch();
  const int rank = hopper::cluster_rank(), column = rank * COLUMNS + threadIdx.x;
  const long long first = 2 * (long long)(blockIdx.x / SLICES);
  long long end[2], slot[2], number[2] = {first, first + 1};
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    end[k] = first + k < a.blocks ? a.ends[first + k] : -1;
    slot[k] = end[k] >= 0 ? a.slots[first + k] : -1;
  }
  if (slot[0] < 0 && slot[1] < 0) return;  // all of the cluster
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    if (slot[k] < 0) end[k] = end[1 - k], number[k] = number[1 - k];  // pooled again, and stored nowhere
  }
  const Source from[2] = {source_of(a, end[0], column), source_of(a, end[1], column)};
  Running sum[2] = {nothing(), nothing()};
  for (int run = 0; run < RUNS; ++run) {
    Parts parts[2];
    float top[2] = {sum[0].top, sum[1].top};
    pool_run<2>(parts, top, a, from, run, column, [](float before, float highest) { return fmaxf(before, highest); });
#pragma unroll
    for (int k = 0; k < 2; ++k) fold(sum[k], top[k], sum_of(parts[k].total), sum_of(parts[k].mixed));
  }
  const float pooled[2] = {quotient(sum[0].mixed, sum[0].total), quotient(sum[1].mixed, sum[1].total)};
  finish<2>(a, meeting, pooled, number, slot, rank, 0);
}

// Cluster p: the chunk that starts at row p, if one does: what ends there, then its rows over what the ring needs no more.
// Clusters behind the last row: query heads of row p - rows.
__global__ void __cluster_dims__(SLICES, 1, 1) __launch_bounds__(COLUMNS* RUNS, 2)
compress_chunks(const Pass a, const Heads q) {
  __shared__ Meeting meeting;
  __shared__ Shared<RUNS> s;
  hopper::grid_dependency_wait();
  hopper::grid_dependency_launch();
  const int first_row = blockIdx.x / SLICES;
  if (first_row >= a.rows) return turn_heads(q, first_row - a.rows, hopper::cluster_rank(), a.eps);
  if (a.befores[first_row] != 0) return;  // all of the cluster
  const int rank = hopper::cluster_rank(), lane = threadIdx.x % COLUMNS, run = threadIdx.x / COLUMNS;
  const int column = rank * COLUMNS + lane;
  int length = 0, turn = 0;
  bool goes_on = true;
  while (goes_on) {
    const long long row = first_row + length, slot = a.slots[row];
    if (a.ends[row] >= 0 && slot >= 0) {
      const Source from[1] = {source_of(a, row, column)};
      Parts parts[1];
      float top[1];
      pool_run<1>(parts, top, a, from, run, column, [&](float, float highest) {
        s.top[run][lane] = highest;
        __syncthreads();
        for (int earlier = 0; earlier < run; ++earlier) highest = fmaxf(s.top[earlier][lane], highest);
        return highest;
      });
      __syncthreads();
      s.top[run][lane] = top[0], s.total[run][lane] = sum_of(parts[0].total), s.mixed[run][lane] = sum_of(parts[0].mixed);
      __syncthreads();
      Running sum = nothing();
      if (run == 0) {
#pragma unroll
        for (int r = 0; r < RUNS; ++r) fold(sum, s.top[r][lane], s.total[r][lane], s.mixed[r][lane]);
      }
      const float pooled[1] = {quotient(sum.mixed, sum.total)};
      const long long number[1] = {row}, slots[1] = {slot};
      finish<1>(a, meeting, pooled, number, slots, rank, turn);
      turn ^= 1;
    }
    ++length;
    goes_on = first_row + length < a.rows && a.befores[first_row + length] == length;
  }
  __syncthreads();  // all reads of the ring are done: each block has channels of its own
  if (threadIdx.x >= 2 * COLUMNS) return;
  const int at = run * DIM + column;  // values, then gates
  for (int n = 0; n < length; ++n) {
    const long long row = first_row + n, ring = a.ring_of[row];
    if (ring >= 0) a.rings[(ring + a.positions[row] % a.ring_len) * a.ring_stride + at] = a.raw[row * a.raw_stride + at];
  }
}

}  // namespace compress

// Blocks of 128 rows, 512 channels of which 64 turn, bfloat16 entries: packed (scale and rotary bytes at their offsets) or
// plain, rounded in groups of 64 or not. `by_rows`: chunks of a few rows, whose rows are kept too, and beside them, where
// `product` is not null, query heads of the rows: [rows][heads][512], normed and turned by angles of their own.
extern "C" int compress_128(const void* raw, void* rings, const void* ape, const void* gain, void* buffer, const void* cos,
                            const void* sin, const void* positions, const void* befores, const void* ring_of,
                            const void* ends, const void* slots, long long raw_stride, long long ring_stride,
                            long long buffer_bytes, int rows, int blocks, int ring_len, int gain_is_half, int rounds,
                            int packed, int scale_offset, int rotary_offset, int by_rows, float eps, const void* product,
                            const void* query_cos, const void* query_sin, void* query, long long product_stride, int heads,
                            void* stream) {
  using namespace compress;
  const Pass a = {(const float*)raw, (float*)rings, (const float*)ape, gain, (uint8_t*)buffer, (const float*)cos,
                  (const float*)sin, (const long long*)positions, (const long long*)befores, (const long long*)ring_of,
                  (const long long*)ends, (const long long*)slots, raw_stride, ring_stride, buffer_bytes, rows, blocks,
                  ring_len, gain_is_half, rounds, packed, scale_offset, rotary_offset, eps};
  const cudaStream_t on = (cudaStream_t)stream;
  if (!by_rows) {
    if (product != nullptr) return cudaErrorInvalidValue;
    return hopper::launch_early(compress_blocks, dim3((blocks + 1) / 2 * SLICES), dim3(COLUMNS), 0, on, a);
  }
  const Heads q = {(const __nv_bfloat16*)product, (const float*)query_cos, (const float*)query_sin, (__nv_bfloat16*)query,
                   product_stride, heads};
  const int clusters = product != nullptr ? 2 * rows : rows;
  return hopper::launch_early(compress_chunks, dim3(clusters * SLICES), dim3(COLUMNS * RUNS), 0, on, a, q);
}
