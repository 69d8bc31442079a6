// A boundary between sub-layers of mHC in one launch: merge, project, weigh, mix, norm and round.
//
// A cluster takes 16 rows at a time and keeps them in registers from the first read to the last store. Each warp owns 32
// columns of all four streams: it merges the closing sub-layer's output there, stores the streams, and forms its part of
// the 24 dot products on the tensor cores and of the sum of squares. The parts are added over the warps of a block and
// then over the blocks of the cluster, both in order; so are the squares of the mix. What blocks tell one another they
// store asynchronously into each other's shared memory, where a barrier counts the bytes: a barrier of the whole cluster
// would wait for every read and write on its way, also those of the next rows.
// The last warp of each block runs Sinkhorn, a row a lane and 16 numbers in registers, once 32 rows wait for it or no more
// come: in decode that is while the others norm and round.
//
// Which warp adds what follows from the width alone: a row's bits ignore the other rows.
//
// The weights of the projection are float32, the streams bfloat16. A weight is cut into two bfloat16 (16 bits of it,
// relative error 2^-17); their products with the streams are exact in float32.
#include "hopper.cuh"
#include <cuda_bf16.h>
#include <cuda_fp8.h>

namespace boundary {

using hopper::named_barrier_sync;
using hopper::shared_address;

constexpr int ROWS = 16, STREAMS = 4, COLUMNS = 32, MOST_RANKS = 16;
constexpr int FEW_ROWS = 1024;  // with more, a second group of warps a block pays

struct Boundary {
  const void *output, *addend;
  const __nv_bfloat16* streams;
  const float *post, *comb, *fn, *scale, *base;
  const void* gain;
  __nv_bfloat16 *merged, *normed;
  uint8_t* codes;
  float *scales, *new_post, *new_comb;
  long long row_stride, stream_stride;
  int rows, size, iters, output_kind, has_addend, gain_is_half;
  float eps, norm_eps;
  const int* slots;  // of an output in parts: which rows have any, and how many a row
  int top_k;
  uint8_t* alone;  // one row's codes and scales as experts.cu reads them, or null
};
enum { NO_OUTPUT, HALF_OUTPUT, WIDE_OUTPUT, PICKED_OUTPUT };
constexpr int MOST_PICKS = 8;

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Stores to the same place in another block, whose barrier of that name learns of so many more bytes.
__device__ __forceinline__ uint32_t in_block(const void* where, uint32_t rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(where)), "r"(rank));
  return remote;
}
__device__ __forceinline__ void push(uint32_t* where, uint64_t* barrier, uint32_t rank, uint32_t value) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
               ::"r"(in_block(where, rank)), "r"(value), "r"(in_block(barrier, rank)) : "memory");
}
__device__ __forceinline__ void push_four(float* where, uint64_t* barrier, uint32_t rank, float4 value) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
               ::"r"(in_block(where, rank)), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w),
               "r"(in_block(barrier, rank)) : "memory");
}
__device__ __forceinline__ uint4 read_once(const void* from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ void ask_for(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }
__device__ __forceinline__ float low_half(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_half(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ void multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float sigmoid(float x) { return reciprocal(1.0f + __expf(-x)); }
// Over the four lanes that share a row.
__device__ __forceinline__ float sum_of_four(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ __forceinline__ uint32_t max_of_four(uint32_t x) {
  x = max(x, __shfl_xor_sync(~0u, x, 1));
  return max(x, __shfl_xor_sync(~0u, x, 2));
}

// What a lane reads of two rows: 8 columns of each stream and of the output. The FORM of the output: bfloat16; float32 or
// with an addend; or the outputs of the picks of a row, which are added up as they are read.
enum Form { HALF, WIDE, PICKED };
struct Raw {
  uint4 x[2][STREAMS], y[2][2], z[2];
};

// What a lane will read of two rows, on its way to the L2 cache without a register to wait in.
template <int FORM> __device__ __forceinline__ void ask_for_rows(const Boundary& a, int first_row, int column) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const long long row = first_row + 8 * r, place = row * a.size + column;
    if (row >= a.rows) return;
    const __nv_bfloat16* x = a.streams + row * a.row_stride + column;
#pragma unroll
    for (int j = 0; j < STREAMS; ++j) ask_for(x + j * a.stream_stride);
    if (a.output_kind == HALF_OUTPUT) ask_for((const __nv_bfloat16*)a.output + place);
    if (FORM == WIDE && a.output_kind == WIDE_OUTPUT) ask_for((const float*)a.output + place);
    if (FORM == WIDE && a.has_addend) ask_for((const __nv_bfloat16*)a.addend + place);
  }
}

// bfloat16 of ((outputs of a row's picks, in order) + shared), float32 added from 0; all are asked for before any is added.
__device__ __forceinline__ uint4 read_picked(const Boundary& a, long long row, int column) {
  const __nv_bfloat16* from = (const __nv_bfloat16*)a.output + row * a.top_k * a.size + column;
  const bool is_live = a.slots[row * a.top_k] >= 0;
  uint4 part[MOST_PICKS + 1];
#pragma unroll
  for (int k = 0; k < MOST_PICKS; ++k)
    if (k < a.top_k) part[k] = read_once(from + (long long)k * a.size);
  part[MOST_PICKS] = read_once((const __nv_bfloat16*)a.addend + row * a.size + column);
  float total[8] = {};
#pragma unroll
  for (int k = 0; k <= MOST_PICKS; ++k) {
    if (k < MOST_PICKS && !(is_live && k < a.top_k)) continue;
    const uint32_t pairs[4] = {part[k].x, part[k].y, part[k].z, part[k].w};
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      total[2 * q] = __fadd_rn(total[2 * q], low_half(pairs[q]));
      total[2 * q + 1] = __fadd_rn(total[2 * q + 1], high_half(pairs[q]));
    }
  }
  return {pack(total[0], total[1]), pack(total[2], total[3]), pack(total[4], total[5]), pack(total[6], total[7])};
}

// In place of rows beyond the last, whose results nobody stores, the last: registers that are cleared first would be waited
// for one after the other.
template <int FORM> __device__ __forceinline__ void read_rows(Raw& raw, const Boundary& a, int first_row, int column) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const long long row = min(first_row + 8 * r, a.rows - 1);
    const __nv_bfloat16* x = a.streams + row * a.row_stride + column;
#pragma unroll
    for (int j = 0; j < STREAMS; ++j) raw.x[r][j] = read_once(x + j * a.stream_stride);
    const long long place = row * a.size + column;
    if (FORM == PICKED) raw.y[r][0] = read_picked(a, row, column);
    else if (a.output_kind == HALF_OUTPUT) raw.y[r][0] = read_once((const __nv_bfloat16*)a.output + place);
    if (FORM == WIDE && a.output_kind == WIDE_OUTPUT) {
      raw.y[r][0] = read_once((const float*)a.output + place);
      raw.y[r][1] = read_once((const float*)a.output + place + 4);
    }
    if (FORM == WIDE && a.has_addend) raw.z[r] = read_once((const __nv_bfloat16*)a.addend + place);
  }
}

// post and comb of 16 rows of the closing sub-layer, 20 numbers a row: at most two of them a thread.
__device__ __forceinline__ void read_closing(float (&closing)[2], const Boundary& a, int block, int thread, int threads) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int i = thread + n * threads, k = i % 20;
    const long long row = (long long)block * ROWS + i / 20;
    closing[n] = 0.0f;
    if (a.output_kind != NO_OUTPUT && i < ROWS * 20 && row < a.rows)
      closing[n] = k < 4 ? a.post[row * 4 + k] : a.comb[row * 16 + k - 4];
  }
}

// The same of a whole block of rows, on its way to the L2 cache: ten lines.
__device__ __forceinline__ void ask_for_closing(const Boundary& a, int block, int thread) {
  const long long first = (long long)block * ROWS;
  if (a.output_kind == NO_OUTPUT || thread >= 10 || first + ROWS > a.rows) return;
  ask_for(thread < 2 ? a.post + first * 4 + 32 * thread : a.comb + first * 16 + 32 * (thread - 2));
}

__device__ __forceinline__ void widen(float (&wide)[8], const uint4& packed) {
  const uint32_t pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int q = 0; q < 4; ++q) wide[2 * q] = low_half(pairs[q]), wide[2 * q + 1] = high_half(pairs[q]);
}

// The output of one row, rounded as the streams are.
template <int FORM> __device__ __forceinline__ void output_of(float (&y)[8], const Raw& raw, int r, const Boundary& a) {
  if (FORM != WIDE || a.output_kind == HALF_OUTPUT) {
    widen(y, raw.y[r][0]);
  } else {
    const uint4 v[2] = {raw.y[r][0], raw.y[r][1]};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      y[4 * h] = __uint_as_float(v[h].x), y[4 * h + 1] = __uint_as_float(v[h].y);
      y[4 * h + 2] = __uint_as_float(v[h].z), y[4 * h + 3] = __uint_as_float(v[h].w);
    }
  }
  if (FORM == WIDE && a.has_addend) {
    float z[8];
    widen(z, raw.z[r]);
#pragma unroll
    for (int c = 0; c < 8; ++c) y[c] += z[c];
  }
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const uint32_t pair = pack(y[2 * q], y[2 * q + 1]);
    y[2 * q] = low_half(pair), y[2 * q + 1] = high_half(pair);
  }
}

// X'_j = post_j y + sum_i C_ij X_i of one row; `w` holds post, then C by rows.
template <int FORM>
__device__ __forceinline__ void merge_row(uint32_t (&merged)[STREAMS][4], const Raw& raw, int r, const float* w,
                                          const Boundary& a) {
  float y[8], x[STREAMS][8];
  output_of<FORM>(y, raw, r, a);
#pragma unroll
  for (int i = 0; i < STREAMS; ++i) widen(x[i], raw.x[r][i]);
#pragma unroll
  for (int j = 0; j < STREAMS; ++j) {
    float t[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      t[c] = __fmul_rn(w[j], y[c]);
#pragma unroll
      for (int i = 0; i < STREAMS; ++i) t[c] = __fmaf_rn(w[4 + 4 * i + j], x[i][c], t[c]);
    }
#pragma unroll
    for (int q = 0; q < 4; ++q) merged[j][q] = pack(t[2 * q], t[2 * q + 1]);
  }
}

// Four numbers over their sum + eps.
__device__ __forceinline__ void normalise(float& a, float& b, float& c, float& d, float eps) {
  const float share = reciprocal(a + b + c + d + eps);
  a *= share, b *= share, c *= share, d *= share;
}

// post and comb of one row from its 24 sums and its sum of squares.
__device__ void weigh_row(const float* sums, const float* scale, const float* base, long long row, const Boundary& a) {
  const float factor = rsqrtf(sums[24] / (float)(STREAMS * a.size) + a.norm_eps);
  const float sharp_post = scale[1], sharp_comb = scale[2];
#pragma unroll
  for (int j = 0; j < 4; ++j) a.new_post[row * 4 + j] = 2.0f * sigmoid(sums[4 + j] * factor * sharp_post + base[4 + j]);
  float c[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) c[i][j] = sums[8 + 4 * i + j] * factor * sharp_comb + base[8 + 4 * i + j];
    const float top = fmaxf(fmaxf(c[i][0], c[i][1]), fmaxf(c[i][2], c[i][3]));
#pragma unroll
    for (int j = 0; j < 4; ++j) c[i][j] = __expf(c[i][j] - top);
    const float share = reciprocal(c[i][0] + c[i][1] + c[i][2] + c[i][3]);
#pragma unroll
    for (int j = 0; j < 4; ++j) c[i][j] = c[i][j] * share + a.eps;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) normalise(c[0][j], c[1][j], c[2][j], c[3][j], a.eps);
  for (int k = 1; k < a.iters; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) normalise(c[i][0], c[i][1], c[i][2], c[i][3], a.eps);
#pragma unroll
    for (int j = 0; j < 4; ++j) normalise(c[0][j], c[1][j], c[2][j], c[3][j], a.eps);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 line = {c[i][0], c[i][1], c[i][2], c[i][3]};
    *(float4*)(a.new_comb + row * 16 + 4 * i) = line;
  }
}

// Four neighbouring sums over the warps, in order; a warp's stand `step` floats behind those of the one before.
template <int WORKERS> __device__ __forceinline__ float4 sum_of_warps(const float* part, int step) {
  float4 total = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int w = 0; w < WORKERS; ++w) {
    const float4 more = *(const float4*)(part + w * step);
    total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
  }
  return total;
}

template <int OUTPUTS, int WORKERS> struct alignas(16) Shared {
  static constexpr int LINE = OUTPUTS + 4;
  float part[WORKERS][ROWS][LINE];              // dot products and, behind them, the sum of squares
  float logits[MOST_RANKS][ROWS][4];            // of each block: what all need of it
  float norms[MOST_RANKS][ROWS];
  float weighing[2][(ROWS + MOST_RANKS) * LINE];  // of each block, by turns: what the rows weighed here need of it
  float queue[32][LINE];                        // sums of rows that wait for Sinkhorn, and which rows they are
  int queued[32];
  float scale[4], base[OUTPUTS];
  uint64_t sums_here, squares_here, largest_here;  // barriers: all blocks' words of that kind have arrived
  alignas(16) float squares[MOST_RANKS][ROWS];
  alignas(16) float square[WORKERS][ROWS];
  float weights[ROWS][20];                      // post and comb of the closing sub-layer
  uint32_t largest[ROWS][WORKERS + 4];          // two places before and behind for neighbours in the same group of 128
};

template <int OUTPUTS, int WORKERS, bool KEEPS_WEIGHTS>
constexpr int WEIGHT_BYTES = KEEPS_WEIGHTS ? 0 : 8 * ((OUTPUTS + 7) / 8) * WORKERS * 32 * 16;

// GROUPS of WORKERS warps take 16 rows each, every group for itself: while one waits for the cluster the other computes.
template <int OUTPUTS, int WORKERS, bool KEEPS_WEIGHTS, int FORM, int GROUPS>
__global__ void __launch_bounds__(32 * WORKERS * GROUPS, 1) cross_boundary(const Boundary a) {
  constexpr int TILES = (OUTPUTS + 7) / 8, THREADS = 32 * WORKERS;
  constexpr bool AHEAD = GROUPS == 1;  // the next rows are read into registers while these are worked on
  constexpr bool STRADDLES = WORKERS % 4 != 0;
  constexpr bool WEIGHS = OUTPUTS > STREAMS;
  extern __shared__ uint4 kept[];  // weights as fragments, where registers do not hold them; then what is shared
  const int group = GROUPS == 1 ? 0 : threadIdx.x / THREADS, thread = threadIdx.x - group * THREADS;
  const int warp = thread / 32, lane = thread % 32;
  auto& s = ((Shared<OUTPUTS, WORKERS>*)(kept + WEIGHT_BYTES<OUTPUTS, WORKERS, KEEPS_WEIGHTS> / 16))[group];
  const int whole = 4 * group + 1;  // named barrier of the group; behind it those of four warps
  uint32_t rank, ranks, cluster, clusters;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(ranks));
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(cluster));
  asm("mov.u32 %0, %%nclusterid.x;" : "=r"(clusters));
  const int blocks = (a.rows + ROWS - 1) / ROWS;
  const int rows_here = (ROWS + ranks - 1) / ranks;
  // Rows of a block of rows that this block weighs, and what it is sent of them.
  const int weighed_here = (ROWS - 1 - (int)rank) / (int)ranks + 1;
  constexpr int LINE = OUTPUTS + 4;
  const uint32_t sums_bytes = 4 * ranks * (ROWS * (STREAMS + 1) + (WEIGHS ? weighed_here * LINE : 0));
  if (thread == 0) {
    hopper::mbarrier_init(shared_address(&s.sums_here), 1);
    hopper::mbarrier_init(shared_address(&s.squares_here), 1);
    hopper::mbarrier_init(shared_address(&s.largest_here), 1);
    hopper::fence_barrier_init();
  }
  __syncthreads();
  cluster_arrive();  // waited for before the first word goes to another block: it and its barriers must be there

  const bool weighs = WEIGHS && warp == WORKERS - 1;
  uint32_t parity = 0;
  int waiting = 0;  // rows in the queue of the warp that weighs
  const int g = lane / 4, t = lane % 4;
  const int column = (rank * WORKERS + warp) * COLUMNS + 8 * t;
  const int first_block = group * clusters + cluster, step = GROUPS * clusters;
  Raw raw;
  float closing[2];
  ask_for_rows<FORM>(a, first_block * ROWS + g, column);

  // Fragments of the weights: product (j, k) covers columns 4 k + {0, 1} and {2, 3} of each lane's eight, in stream j.
  uint4 fragment[KEEPS_WEIGHTS ? 8 * TILES : 1];
#pragma unroll
  for (int j = 0; j < STREAMS; ++j) {
    if (j % GROUPS != group) continue;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      const int output = tile * 8 + g;
      const float4 none = {0, 0, 0, 0};
      const float4* from = (const float4*)(a.fn + ((long long)output * STREAMS + j) * a.size + column);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float4 w = output < OUTPUTS ? __ldg(from + k) : none;
        uint4 cut;
        cut.x = pack(w.x, w.y), cut.y = pack(w.z, w.w);
        cut.z = pack(w.x - low_half(cut.x), w.y - high_half(cut.x));
        cut.w = pack(w.z - low_half(cut.y), w.w - high_half(cut.y));
        const int place = (2 * j + k) * TILES + tile;
        if (KEEPS_WEIGHTS) fragment[place] = cut;
        else kept[(place * WORKERS + warp) * 32 + lane] = cut;
      }
    }
  }
  float gain[8];
  if (a.gain_is_half) {
    widen(gain, *(const uint4*)((const __nv_bfloat16*)a.gain + column));
  } else {
#pragma unroll
    for (int c = 0; c < 8; ++c) gain[c] = __ldg((const float*)a.gain + column + c);
  }
  if (thread < OUTPUTS) s.base[thread] = a.base[thread];
  if (thread < (WEIGHS ? 3 : 1)) s.scale[thread] = a.scale[thread];

  // Until here only weights were read (and rows asked into the L2 cache, which has what is written to them later): so much
  // goes on while the kernel before ends.
  hopper::grid_dependency_wait();
  hopper::grid_dependency_launch();
  if (AHEAD) {
    read_rows<FORM>(raw, a, first_block * ROWS + g, column);
    read_closing(closing, a, first_block, thread, THREADS);
  }
  if (GROUPS > 1) __syncthreads();  // each group has made a part of the weights' fragments
  cluster_wait();

  for (int block = first_block; block < blocks; block += step) {
    const int first_row = block * ROWS + g;
    if (!AHEAD) {
      read_rows<FORM>(raw, a, first_row, column);
      read_closing(closing, a, block, thread, THREADS);
      if (block + step < blocks) ask_for_rows<FORM>(a, first_row + step * ROWS, column), ask_for_closing(a, block + step, thread);
    }
    uint32_t x[2][STREAMS][4];
    if (a.output_kind != NO_OUTPUT) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int i = thread + n * THREADS;
        if (i < ROWS * 20) s.weights[i / 20][i % 20] = closing[n];
      }
      named_barrier_sync(whole, THREADS);
    }
    float square[2] = {0.0f, 0.0f};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const long long row = first_row + 8 * r;
      if (a.output_kind != NO_OUTPUT) {
        merge_row<FORM>(x[r], raw, r, s.weights[g + 8 * r], a);
        if (row < a.rows) {
#pragma unroll
          for (int j = 0; j < STREAMS; ++j) {
            const uint4 line = {x[r][j][0], x[r][j][1], x[r][j][2], x[r][j][3]};
            *(uint4*)(a.merged + (row * STREAMS + j) * a.size + column) = line;
          }
        }
      } else {
#pragma unroll
        for (int j = 0; j < STREAMS; ++j) {
          x[r][j][0] = raw.x[r][j].x, x[r][j][1] = raw.x[r][j].y;
          x[r][j][2] = raw.x[r][j].z, x[r][j][3] = raw.x[r][j].w;
        }
      }
#pragma unroll
      for (int j = 0; j < STREAMS; ++j) {
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          square[r] = __fmaf_rn(low_half(x[r][j][q]), low_half(x[r][j][q]), square[r]);
          square[r] = __fmaf_rn(high_half(x[r][j][q]), high_half(x[r][j][q]), square[r]);
        }
      }
    }
    if (AHEAD && block + step < blocks) {
      read_rows<FORM>(raw, a, first_row + step * ROWS, column);
      read_closing(closing, a, block + step, thread, THREADS);
    }

    float dots[TILES][4] = {};
#pragma unroll
    for (int j = 0; j < STREAMS; ++j) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
          const int place = (2 * j + k) * TILES + tile;
          const uint4 w = KEEPS_WEIGHTS ? fragment[KEEPS_WEIGHTS ? place : 0] : kept[(place * WORKERS + warp) * 32 + lane];
          multiply(dots[tile], x[0][j][2 * k], x[1][j][2 * k], x[0][j][2 * k + 1], x[1][j][2 * k + 1], w.x, w.y);
          multiply(dots[tile], x[0][j][2 * k], x[1][j][2 * k], x[0][j][2 * k + 1], x[1][j][2 * k + 1], w.z, w.w);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      square[r] = sum_of_four(square[r]);
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        const int output = tile * 8 + 2 * t;
        if (output < OUTPUTS) {
          s.part[warp][g + 8 * r][output] = dots[tile][2 * r];
          s.part[warp][g + 8 * r][output + 1] = dots[tile][2 * r + 1];
        }
      }
      if (t == 0) s.part[warp][g + 8 * r][OUTPUTS] = square[r];
    }
    named_barrier_sync(whole, THREADS);
    // Whoever tells another block a sum adds it up, over the warps in order.
    for (int i = thread; i < ROWS * (int)ranks; i += THREADS) {
      const int row = i % ROWS;
      push_four(s.logits[rank][row], &s.sums_here, i / ROWS, sum_of_warps<WORKERS>(&s.part[0][row][0], ROWS * LINE));
    }
    for (int i = thread; i < ROWS / 4 * (int)ranks; i += THREADS) {
      const int row = i % (ROWS / 4) * 4;
      float four[4];
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        four[q] = 0.0f;
#pragma unroll
        for (int w = 0; w < WORKERS; ++w) four[q] += s.part[w][row + q][OUTPUTS];
      }
      push_four(&s.norms[rank][row], &s.sums_here, i / (ROWS / 4), {four[0], four[1], four[2], four[3]});
    }
    if (WEIGHS) {
      for (int i = THREADS - 1 - thread; i < ROWS * LINE / 4; i += THREADS) {
        const int row = i / (LINE / 4), o = i % (LINE / 4) * 4;
        float* where = &s.weighing[parity][(rank * rows_here + row / ranks) * LINE + o];
        push_four(where, &s.sums_here, row % ranks, sum_of_warps<WORKERS>(&s.part[0][row][o], ROWS * LINE));
      }
    }
    if (thread == 0) hopper::mbarrier_arrive_expect(shared_address(&s.sums_here), sums_bytes);
    hopper::mbarrier_wait(shared_address(&s.sums_here), parity);

    // The gates of a lane's two rows: each of its four lanes has one stream's.
    float gates[2][STREAMS];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float logit = 0.0f, squares = 0.0f;
#pragma unroll
      for (uint32_t from = 0; from < MOST_RANKS; ++from) {
        if (from < ranks) logit += s.logits[from][g + 8 * r][t], squares += s.norms[from][g + 8 * r];
      }
      const float factor = rsqrtf(squares / (float)(STREAMS * a.size) + a.norm_eps);
      const float own = sigmoid(logit * factor * s.scale[0] + s.base[t]) + a.eps;
#pragma unroll
      for (int i = 0; i < STREAMS; ++i) gates[r][i] = __shfl_sync(~0u, own, i, STREAMS);
    }
    float mixed[2][8];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = 0.0f;
#pragma unroll
      for (int c = 0; c < 8; ++c) mixed[r][c] = 0.0f;
#pragma unroll
      for (int i = 0; i < STREAMS; ++i) {
        const float gate = gates[r][i];
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          mixed[r][2 * q] = __fmaf_rn(gate, low_half(x[r][i][q]), mixed[r][2 * q]);
          mixed[r][2 * q + 1] = __fmaf_rn(gate, high_half(x[r][i][q]), mixed[r][2 * q + 1]);
        }
      }
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const uint32_t pair = pack(mixed[r][2 * q], mixed[r][2 * q + 1]);
        mixed[r][2 * q] = low_half(pair), mixed[r][2 * q + 1] = high_half(pair);
        sum = __fmaf_rn(mixed[r][2 * q], mixed[r][2 * q], sum);
        sum = __fmaf_rn(mixed[r][2 * q + 1], mixed[r][2 * q + 1], sum);
      }
      sum = sum_of_four(sum);
      if (t == 0) s.square[warp][g + 8 * r] = sum;
    }
    named_barrier_sync(whole, THREADS);
    for (int i = thread; i < ROWS / 4 * (int)ranks; i += THREADS) {
      const int row = i % (ROWS / 4) * 4;
      float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int w = 0; w < WORKERS; ++w) {
        const float4 more = *(const float4*)&s.square[w][row];
        four.x += more.x, four.y += more.y, four.z += more.z, four.w += more.w;
      }
      push_four(&s.squares[rank][row], &s.squares_here, i / (ROWS / 4), four);
    }
    if (thread == 0) hopper::mbarrier_arrive_expect(shared_address(&s.squares_here), 4 * ranks * ROWS);
    if (weighs) {  // row k of a block of rows is weighed by rank k % ranks; the others wait for the cluster meanwhile
      for (int i = lane; i < rows_here * (OUTPUTS + 1); i += 32) {
        const int k = i / (OUTPUTS + 1), o = i % (OUTPUTS + 1);
        float total = 0.0f;
#pragma unroll
        for (uint32_t from = 0; from < MOST_RANKS; ++from) {
          if (from < ranks) total += s.weighing[parity][(from * rows_here + k) * LINE + o];
        }
        s.queue[waiting + k][o] = total;
      }
      const int k = lane * ranks + rank;
      if (lane < rows_here) s.queued[waiting + lane] = k < ROWS ? block * ROWS + k : a.rows;
      waiting += rows_here;
      __syncwarp();
    }
    if (weighs && (block + step >= blocks || waiting + rows_here > 32)) {
      if (lane < waiting && s.queued[lane] < a.rows) weigh_row(s.queue[lane], s.scale, s.base, s.queued[lane], a);
      waiting = 0;
      __syncwarp();
    }
    hopper::mbarrier_wait(shared_address(&s.squares_here), parity);

    uint32_t normed[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const long long row = first_row + 8 * r;
      float total = 0.0f;
#pragma unroll
      for (uint32_t from = 0; from < MOST_RANKS; ++from) {
        if (from < ranks) total += s.squares[from][g + 8 * r];
      }
      const float factor = rsqrtf(total / (float)a.size + a.norm_eps);
      uint32_t largest = 0;
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        normed[r][q] = pack(mixed[r][2 * q] * factor * gain[2 * q], mixed[r][2 * q + 1] * factor * gain[2 * q + 1]);
        largest = max(largest, max((normed[r][q] << 16) & 0x7FFFFFFFu, normed[r][q] & 0x7FFF0000u));
      }
      if (row < a.rows) {
        const uint4 line = {normed[r][0], normed[r][1], normed[r][2], normed[r][3]};
        *(uint4*)(a.normed + row * a.size + column) = line;
      }
      largest = max_of_four(largest);
      if (t == 0) {
        s.largest[g + 8 * r][warp + 2] = largest;
        if (STRADDLES) {
          const bool is_late = (rank * WORKERS) % 4 != 0;  // this block starts in the middle of a group
          if (is_late && warp < 2)
            push(&s.largest[g + 8 * r][warp + WORKERS + 2], &s.largest_here, rank - 1, largest);
          if (!is_late && warp >= WORKERS - 2)
            push(&s.largest[g + 8 * r][warp - WORKERS + 2], &s.largest_here, rank + 1, largest);
        }
      }
    }
    if (STRADDLES) {
      if (thread == 0) hopper::mbarrier_arrive_expect(shared_address(&s.largest_here), 4 * 2 * ROWS);
      hopper::mbarrier_wait(shared_address(&s.largest_here), parity);
      named_barrier_sync(whole, THREADS);
    } else {
      named_barrier_sync(whole + 1 + warp / 4, 128);
    }
    if (a.codes != nullptr) {
      const int shift = (rank * WORKERS) % 4, first = (warp + shift) / 4 * 4 - shift + 2;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const long long row = first_row + 8 * r;
        uint32_t largest = 0;
#pragma unroll
        for (int k = 0; k < 4; ++k) largest = max(largest, s.largest[g + 8 * r][first + k]);
        const uint32_t bits = __float_as_uint(fmaxf(__uint_as_float(largest), 1e-4f) * (1.0f / 448.0f));
        const uint32_t exponent = (bits >> 23) + ((bits & 0x7FFFFFu) != 0);
        const bool is_finite = largest < 0x7F800000u;
        const float scale = __uint_as_float(is_finite ? exponent << 23 : 0x7FC00000u);
        const float inverse = is_finite ? __uint_as_float((254u - exponent) << 23) : scale;
        uint32_t code[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float2 front = {low_half(normed[r][2 * h]) * inverse, high_half(normed[r][2 * h]) * inverse};
          const float2 back = {low_half(normed[r][2 * h + 1]) * inverse, high_half(normed[r][2 * h + 1]) * inverse};
          code[h] = __nv_cvt_float2_to_fp8x2(front, __NV_SATFINITE, __NV_E4M3) |
                    ((uint32_t)__nv_cvt_float2_to_fp8x2(back, __NV_SATFINITE, __NV_E4M3) << 16);
        }
        if (row < a.rows) {
          const uint2 line = {code[0], code[1]};
          *(uint2*)(a.codes + row * a.size + column) = line;
          if (GROUPS == 1 && a.alone != nullptr) {  // runs of 128 by twos, each with room for eight rows, and their scales behind them
            const int run = column / 128;
            uint8_t* two = a.alone + run / 2 * (8 * 264);
            *(uint2*)(two + run % 2 * 1024 + column % 128) = line;
            if (t == 0 && (warp + shift) % 4 == 0) *(float*)(two + 2048 + run % 2 * 32) = scale;
          }
          if (t == 0 && (warp + shift) % 4 == 0) a.scales[row * (a.size / 128) + column / 128] = scale;
        }
      }
    }
    parity ^= 1;
  }
}

template <int OUTPUTS, int WORKERS, bool KEEPS_WEIGHTS, int FORM, int GROUPS>
int launch(const Boundary& a, cudaStream_t stream) {
  constexpr int BYTES =
      WEIGHT_BYTES<OUTPUTS, WORKERS, KEEPS_WEIGHTS> + GROUPS * (int)sizeof(Shared<OUTPUTS, WORKERS>);
  static int most_of[MOST_RANKS + 1] = {};  // clusters that run at once
  const int ranks = a.size / (COLUMNS * WORKERS), blocks = (a.rows + ROWS - 1) / ROWS;
  auto kernel = cross_boundary<OUTPUTS, WORKERS, KEEPS_WEIGHTS, FORM, GROUPS>;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {(unsigned)ranks, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(ranks);
  config.blockDim = dim3(32 * WORKERS * GROUPS);
  config.dynamicSmemBytes = BYTES;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 1;
  int& most = most_of[ranks];
  if (most == 0) {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    int found = 0;
    if (error == cudaSuccess) error = cudaOccupancyMaxActiveClusters(&found, kernel, &config);
    if (error != cudaSuccess) return error;
    if (found == 0) return cudaErrorInvalidConfiguration;
    most = found;
  }
  config.gridDim = dim3(ranks * (blocks < most ? blocks : most));
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kernel, a);
}

// Registers hold the weights where there are enough of them. Two groups share weights in shared memory and have half the
// registers each; with few rows a cluster has no work for both.
template <int OUTPUTS, int WORKERS> int on_width(const Boundary& a, cudaStream_t stream) {
  const bool is_wide = a.has_addend || a.output_kind == WIDE_OUTPUT;
  if constexpr (WORKERS == 8 && OUTPUTS == 24) {
    if (a.output_kind == PICKED_OUTPUT) return launch<OUTPUTS, WORKERS, false, PICKED, 1>(a, stream);
  }
  if (a.output_kind == PICKED_OUTPUT) return cudaErrorInvalidValue;
  if constexpr (WORKERS == 8 && OUTPUTS == 24) {
    if (a.rows > FEW_ROWS)
      return is_wide ? launch<OUTPUTS, WORKERS, false, WIDE, 2>(a, stream)
                     : launch<OUTPUTS, WORKERS, false, HALF, 2>(a, stream);
  }
  if (is_wide) return launch<OUTPUTS, WORKERS, false, WIDE, 1>(a, stream);
  return launch<OUTPUTS, WORKERS, WORKERS == 8, HALF, 1>(a, stream);
}

}  // namespace boundary

// outputs 24: a boundary; 4: the exit (new_post and new_comb are not written). output_kind: 0 none, 1 bfloat16,
// 2 float32, 3 bfloat16 of `top_k` picks a row, to be added up with the addend; `alone`: of one row, its codes
// in the blocked form of experts.cu too; addend bfloat16 or null; codes and scales may be null. Returns cudaErrorInvalidValue for other widths.
extern "C" int cross(const void* output, const void* addend, const void* streams, const void* post, const void* comb,
                     const void* fn, const void* scale, const void* base, const void* gain, void* merged, void* normed,
                     void* codes, void* scales, void* new_post, void* new_comb, long long row_stride,
                     long long stream_stride, int rows, int size, int outputs, int iters, int output_kind,
                     int gain_is_half, float eps, float norm_eps, const void* slots, int top_k, void* alone, void* stream) {
  using namespace boundary;
  Boundary a = {output, addend, (const __nv_bfloat16*)streams, (const float*)post, (const float*)comb,
                (const float*)fn, (const float*)scale, (const float*)base, gain, (__nv_bfloat16*)merged,
                (__nv_bfloat16*)normed, (uint8_t*)codes, (float*)scales, (float*)new_post, (float*)new_comb,
                row_stride, stream_stride, rows, size, iters, output_kind, addend != nullptr, gain_is_half, eps,
                norm_eps, (const int*)slots, top_k, (uint8_t*)alone};
  if (output_kind == PICKED_OUTPUT && (addend == nullptr || top_k > MOST_PICKS)) return cudaErrorInvalidValue;
  if (alone != nullptr && (rows != 1 || codes == nullptr || size % 256 != 0)) return cudaErrorInvalidValue;
  const cudaStream_t on = (cudaStream_t)stream;
  if (size % 256 == 0 && size <= 256 * MOST_RANKS) return outputs == 24 ? on_width<24, 8>(a, on) : on_width<4, 8>(a, on);
  if (size % 896 == 0 && size <= 448 * MOST_RANKS) return outputs == 24 ? on_width<24, 14>(a, on) : on_width<4, 14>(a, on);
  return cudaErrorInvalidValue;
}
