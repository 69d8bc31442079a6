// Index scores from packed keys on Hopper: sum over 64 heads of gamma * relu(query . key), heads and keys of 128 values.
//
// A launch scores all rows, or many of single ones. A group is one row, or up to 8 rows of a tile, which share their
// keys; the key blocks of all groups, laid end to end, are dealt to the programs in equal runs, whatever the lengths,
// which only the device knows. In a program one warp copies keys to a ring in shared memory, three warps round queries
// to e4m3, and three warpgroups take units of two blocks each: they widen a unit to e4m3 in registers, 64 keys on the M
// side, and multiply it by one row's 64 heads after the other.
//
// A score is a function of its row and its key. Keys: FP4 under four scales become e4m3 under the largest of them, the
// others by a table; FP8 is taken as it is. Queries: e4m3 under one power of two a head. Both are exact where values
// went through the rounding of the format; where they do not fit (scales of a key more than 2^11 apart, a query that
// was not rounded) the pair is computed in float32, one product after the other. Dots are those of the tensor cores:
// four steps of 32 values. Heads are summed in one order: 8j + 2t + b over j, then over b, then over t in pairs.
#include <climits>
#include "keys.cuh"
#include "queries.cuh"

namespace index_scores_of_rows {

// --- products and their sum over heads

__device__ __forceinline__ void multiply_step(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)adds));
}

// 64 keys by the 64 heads of one row, in flight until the group committed here is waited for.
__device__ __forceinline__ void multiply(float (&d)[32], const Fragment& f, uint64_t codes) {
  wgmma_hold(d);
  wgmma_fence();
#pragma unroll
  for (int j = 0; j < 4; ++j) multiply_step(d, f.a[j], codes + j * (2 * QUERY_STRIDE >> 4), j > 0);
  wgmma_commit();
}

__device__ __forceinline__ void load_weights(const float* weights, float (&w)[16]) {
  const float4* mine = reinterpret_cast<const float4*>(weights + (threadIdx.x & 3) * WEIGHT_STRIDE);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 v = mine[i];
    w[4 * i] = v.x, w[4 * i + 1] = v.y, w[4 * i + 2] = v.z, w[4 * i + 3] = v.w;
  }
}

// x + |x| = 2 relu(x); weights are halved.
__device__ __forceinline__ float add_head(float sum, float x, float weight) {
  return __fmaf_rn(__fadd_rn(x, fabsf(x)), weight, sum);
}

// Heads 2t, 2t + 1 and those of the neighbour: of key g in the quad's even threads, of key g + 8 in the odd ones.
__device__ __forceinline__ float sum_of_pair(const float (&d)[32], const float (&w)[16]) {
  float sum[4] = {0, 0, 0, 0};  // (key, b)
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = add_head(sum[i], d[4 * j + i], w[2 * j + (i & 1)]);
  const float first = __fadd_rn(sum[0], sum[1]), second = __fadd_rn(sum[2], sum[3]);
  const bool is_odd = threadIdx.x & 1;
  return __fadd_rn(is_odd ? second : first, __shfl_xor_sync(~0u, is_odd ? first : second, 1));
}

// All heads: of the first block in the quad's threads 0 and 1, of the second one in 2 and 3.
__device__ __forceinline__ float sum_of_quad(float first, float second) {
  const bool is_second = threadIdx.x & 2;
  return __fadd_rn(is_second ? second : first, __shfl_xor_sync(~0u, is_second ? first : second, 2));
}

// --- a warpgroup

template <int ROWS> __device__ __forceinline__ bool is_any_inexact(const Queries<ROWS>& q) {
  int any = 0;
#pragma unroll
  for (int r = 0; r < ROWS; ++r) any |= q.is_inexact[r];
  return any;
}

// What a thread stores of a unit: one key's scores, `entry` beyond all limits if there is no such key.
struct Target {
  float scale;
  int entry;
  float* out;
};

// All rows of a group against two fragments; a product of one is in flight while the other's heads are summed.
template <int ROWS>
__device__ __forceinline__ void score_unit(const Queries<ROWS>& q, const Fragment& f0, const Fragment& f1,
                                           float (&d0)[32], float (&d1)[32], uint64_t codes, Target target,
                                           int64_t width) {
#pragma unroll  // around a loop of products in flight the assembler would serialise them
  for (int r = 0; r < ROWS; ++r) {
    const bool is_last = r == ROWS - 1;
    float weights[16];
    load_weights(q.weights[r], weights);
    wgmma_wait<1>();
    wgmma_hold(d0);
    const float first = sum_of_pair(d0, weights);
    if (!is_last) multiply(d0, f0, codes + (r + 1) * (QUERY_BYTES >> 4));
    if (is_last) wgmma_wait<0>();
    else wgmma_wait<1>();
    wgmma_hold(d1);
    const float second = sum_of_pair(d1, weights);
    if (!is_last) multiply(d1, f1, codes + (r + 1) * (QUERY_BYTES >> 4));
    const float score = __fmul_rn(sum_of_quad(first, second), target.scale);
    if (target.entry < q.limit[r]) target.out[r * width] = score;
  }
}

// Keeps a fragment in its registers until its last product was waited for.
__device__ __forceinline__ void hold(const Fragment& f) {
#pragma unroll
  for (int i = 0; i < 16; ++i) asm volatile("" ::"r"(f.a[i / 4][i % 4]) : "memory");
}

template <Form FORM, int ROWS>
__device__ __forceinline__ void score_keys(const Work& w, Shared<FORM, ROWS>& s) {
  using S = Shape<FORM, ROWS>;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, mine = warp / 4, first_key = warp % 4 * 16;
  const int second = lane >> 1 & 1, key = first_key + (lane >> 2) + 8 * (lane & 1);  // what this thread stores
  const int64_t width = (int64_t)(w.end - w.first) * BLOCK;
  Walk walk(s);
  int unit = 0, stage = 0, phase = 0;
  float d0[32], d1[32];
  for (Segment segment; walk.next(segment);) {
    const int n = segment.number;
    const Queries<ROWS>& q = s.queries[n & 1];
    constexpr int MADE = FIRST_GROUPS<ROWS>;  // before the first phase of `ready`
    if (n >= MADE) mbarrier_wait(shared_address(&s.ready[n & 1]), (n - MADE) >> 1 & 1);
    // The shuffle tells the compiler that all threads have the same address: a sixth of the loop's instructions.
    const uint64_t codes = wgmma_descriptor(__shfl_sync(~0u, shared_address(q.codes), 0), QUERY_STRIDE, 128);
    const bool is_inexact = is_any_inexact(q);
    const Group g = group_of<ROWS>(w, segment.group);
    float* out = w.out + ((int64_t)g.tile * w.per_tile + g.first_place) * width;
    for (int block = 0; block < segment.count; block += 2) {
      if (unit == mine) {
        const int column = (segment.first + block) * BLOCK, entry = w.first * BLOCK + column;
        const uint8_t* rows = s.keys[stage] + first_key * S::ROW_BYTES;
        Fragment f0, f1;
        mbarrier_wait(shared_address(&s.full[stage]), phase);
        load_fragment<FORM>(rows, f0);
        multiply(d0, f0, codes);
        // Where the run ends with this block, the next one is another program's.
        const bool has_second = block + 1 < segment.count;
        f1 = {};
        if (has_second) load_fragment<FORM>(rows + BLOCK * S::ROW_BYTES, f1);
        multiply(d1, f1, codes);
        const bool is_special = is_inexact || f0.special || f1.special;
        __syncwarp();
        if (!is_special && lane == 0) mbarrier_arrive(shared_address(&s.empty[stage]));
        const int next = has_second ? entry + BLOCK : INT_MAX - BLOCK;
        float* place = out + column + second * BLOCK + key;
        const Target target{second ? f1.scale : f0.scale, (second ? next : entry) + key, place};
        score_unit<ROWS>(q, f0, f1, d0, d1, codes, target, width);
        hold(f0), hold(f1);
        if (is_special) {
          float* special = out + column + first_key;
          score_exactly<FORM, ROWS>(w, q, rows, f0.special, entry + first_key, 0, special, width);
          score_exactly<FORM, ROWS>(w, q, rows + BLOCK * S::ROW_BYTES, f1.special, next + first_key, 1, special + BLOCK,
                                    width);
          __syncwarp();
          if (lane == 0) mbarrier_arrive(shared_address(&s.empty[stage]));
        }
      }
      if (++unit == MATH_GROUPS) unit = 0;
      if (++stage == S::STAGES) stage = 0, phase ^= 1;
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared_address(&s.done[n & 1]));
  }
}

template <Form FORM, int ROWS> __global__ void __launch_bounds__(THREADS, 1) score(const Work w) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& s = *reinterpret_cast<Shared<FORM, ROWS>*>(memory);
  const int num_groups = w.num_tiles * ((w.per_tile + ROWS - 1) / ROWS), warp = threadIdx.x >> 5;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape<FORM, ROWS>::STAGES; ++i)
      mbarrier_init(shared_address(&s.full[i]), 1), mbarrier_init(shared_address(&s.empty[i]), 4);
    for (int i = 0; i < 2; ++i)
      mbarrier_init(shared_address(&s.ready[i]), ROUNDERS), mbarrier_init(shared_address(&s.done[i]), MATH_WARPS);
    fence_barrier_init();
  }
  sum_blocks<FORM, ROWS>(w, s, num_groups);
  if (s.run_begin >= s.run_end) return;
  if (warp >= LOADER) {
    give_registers<56>();
    if (warp == LOADER) {
      load_keys<FORM, ROWS>(w, s);
    } else {
      prepare_first<FORM, ROWS>(w, s, warp - 1);
      round_queries<FORM, ROWS>(w, s);
    }
  } else {
    prepare_first<FORM, ROWS>(w, s, warp);
    take_registers<152>();
    score_keys<FORM, ROWS>(w, s);
  }
}

template <Form FORM, int ROWS> cudaError_t launch(Work w, int programs, cudaStream_t stream) {
  constexpr int BYTES = sizeof(Shared<FORM, ROWS>);
  static_assert(BYTES <= 227 * 1024, "a program has 227 KiB of shared memory");
  const auto kernel = score<FORM, ROWS>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
  const int step = MAX_GROUPS / ((w.per_tile + ROWS - 1) / ROWS), total = w.num_tiles;  // as many as the sums hold
  const int64_t width = (int64_t)(w.end - w.first) * BLOCK;
  for (int first = 0; first < total && error == cudaSuccess; first += step) {
    w.num_tiles = total - first < step ? total - first : step;
    kernel<<<programs, THREADS, BYTES, stream>>>(w);
    error = cudaGetLastError();
    const int64_t places = (int64_t)w.num_tiles * w.per_tile;
    w.queries += places, w.positions += places, w.used += w.num_tiles, w.sequence += w.num_tiles;
    w.out += places * width;
  }
  return error;
}

}  // namespace index_scores_of_rows

using namespace index_scores_of_rows;

// Writes the scores that rows see and nothing else. `form`: 0 for keys of 68 bytes (FP4), 1 for 132 (FP8).
extern "C" int index_scores(const void* query, const float* gamma, const uint8_t* keys, const int64_t* queries,
                            const int64_t* positions, const int64_t* used, const int64_t* sequence,
                            const int64_t* table, float* out, int num_tiles, int per_tile, int first, int end,
                            int pages, int page_bits, int ratio_bits, int form, int programs, int64_t gamma_step,
                            float gamma_scale, void* stream) {
  const Work w{(const __nv_bfloat16*)query, gamma, keys, queries, positions, used, sequence, table, out,
               num_tiles, per_tile, first, end, pages, page_bits, ratio_bits, gamma_step, gamma_scale};
  const auto on = (cudaStream_t)stream;
  if (form == 0) return per_tile == 1 ? launch<FP4, 1>(w, programs, on) : launch<FP4, 8>(w, programs, on);
  return per_tile == 1 ? launch<FP8, 1>(w, programs, on) : launch<FP8, 8>(w, programs, on);
}
