// Products of a few rows an expert with FP4 matrices that are streamed once, as `layout.py` lays them out.
//
// A block owns some tiles; a tile is 256 lines (outputs) of one expert times one group of its rows. One producer lane
// keeps a ring of stages full: 256 inputs of the tile's codes and exponents, and of the group's rows. Each consumer warp
// widens 16 lines to e4m3 in registers (two masks, and a byte table that the exponent shifts), multiplies them as operand
// A with the rows as B, and after each run of 128 inputs adds acc += d * row scale in float32: one order for any number
// of rows and any width of the product. Lines of one row never meet those of another.
//
// Rows come in blocked form, from rows.cu and, between the two products, from the first one: expert e owns the padded
// rows from first_row(e) on, which leaves room for each expert to start at a multiple of 8 and needs no scan. A group of
// n rows (a multiple of 8) holds for each 256 inputs the values [2 runs][n][128 bytes], then float32 scales [2][n]. Of the
// 128 bytes, wgmma's swizzled tile, 16 that stand at place c of row r lie at c ^ (r % 8).
#include <cuda_bf16.h>

#include <type_traits>

#include "hopper.cuh"

using namespace hopper;

namespace moe_experts {

constexpr int kTile = 256;   // lines of a tile
constexpr int kStage = 256;  // inputs of a stage
constexpr int kRuns = 2;     // of 128 inputs in a stage
constexpr int kCodeBytes = kTile * kStage / 2;
constexpr int kPieceBytes = kCodeBytes + kTile * kStage / 32;
constexpr int kRowBytes = kStage + 4 * kRuns;  // of a stage: values and scales
constexpr float kFp8Max = 448.f, kFp8Floor = 1e-4f;

struct Parameters {
  const uint8_t* pieces;  // [E][outputs / 256][inputs / 256][34816]
  const float* base;      // [E][outputs]
  const uint8_t* rows;    // blocked
  const int* offsets;     // [E + 1]
  const int* order;       // picks by expert
  const float* weights;   // of picks; first product only
  void* result;           // first product: blocked rows; second: bfloat16 [picks][outputs]
  int experts, outputs, inputs, is_spread;
  float limit;
  int is_alone;           // one row: every expert's rows are the same, at the start of `rows`
};

// An expert that has rows. `offset`: its place in `order`; `group`: groups of rows of all entries before. The entry behind
// the last one has the total there.
struct Entry {
  int expert, num_rows, offset, group;
};

// `block`: of 256 lines; `group`: of the entry's rows; `num_rows`: of the group.
struct Tile {
  int entry, block, group, num_rows;
};

// One kernel's sizes: at most 8 GROUPS rows in a group; each of W warps has kMt slices of 16 lines.
template <int GROUPS, int W, int STAGES, bool SWIGLU> struct Shape {
  static constexpr int kWarps = W, kStages = STAGES, kGroupRows = 8 * GROUPS, kMt = kTile / (16 * W);
  // The producer is one lane, but registers are traded by warpgroups: what it does not need goes to the consumers. Of the
  // 96 x 640 or 168 x 384 that a block starts with, no more than these are left for each of theirs.
  static constexpr int kThreads = 32 * W + 128, kRegisters = W == 16 ? 112 : 240;
  static constexpr int kSlotBytes = (kPieceBytes + kGroupRows * kRowBytes + 1023) / 1024 * 1024;
  // After the ring: maxima of two tiles and codes of one (first product), barriers, counts, the list of entries.
  static constexpr int kCodesAt = STAGES * kSlotBytes, kMaximaAt = kCodesAt + (SWIGLU ? 128 * kGroupRows : 0);
  static constexpr int kBarriersAt = kMaximaAt + (SWIGLU ? 8 * kGroupRows : 0);
  static constexpr int kCountsAt = kBarriersAt + 16 * STAGES, kListAt = kCountsAt + 128;
  static int shared_bytes(int experts) { return kListAt + (experts + 1) * (int)sizeof(Entry); }

  // Calls `run` with the width, in groups of 8 rows, of the product that takes `num_rows`.
  template <typename Run> static __device__ __forceinline__ void with_width(int num_rows, const Run& run) {
    if constexpr (GROUPS <= 8) {
      if (num_rows <= 8) return run(std::integral_constant<int, 1>());
      if (num_rows <= 16) return run(std::integral_constant<int, 2>());
      if (num_rows <= 24) return run(std::integral_constant<int, 3>());
      if (num_rows <= 32) return run(std::integral_constant<int, 4>());
      if constexpr (GROUPS == 8) {
        if (num_rows <= 48) return run(std::integral_constant<int, 6>());
        return run(std::integral_constant<int, 8>());
      }
    } else {
      if (num_rows <= 32) return run(std::integral_constant<int, 4>());
      if (num_rows <= 64) return run(std::integral_constant<int, 8>());
      if (num_rows <= 96) return run(std::integral_constant<int, 12>());
      return run(std::integral_constant<int, 16>());
    }
  }
};

__device__ __forceinline__ int first_row(int offset, int expert) { return (offset + 7 * expert) / 8 * 8; }
__device__ __forceinline__ int padded(int num_rows) { return (num_rows + 7) / 8 * 8; }

// Where `row`, the first of a group of padded rows of `inputs` values, starts.
__device__ __forceinline__ size_t row_start(int row, int inputs) { return (size_t)row * (inputs + inputs / 32); }

// The list of experts that have rows; every block makes its own. Returns the number of all groups.
template <class S> __device__ int list_experts(const Parameters& p, Entry* list, int* counts) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  int entries = 0, groups = 0;
  for (int start = 0; start < p.experts; start += S::kThreads) {
    const int expert = start + threadIdx.x;
    int offset = 0, num_rows = 0;
    if (expert < p.experts) {
      // Not by L1, which may hold an earlier pass's: this runs before the kernel ahead has ended.
      offset = __ldcg(p.offsets + expert);
      num_rows = __ldcg(p.offsets + expert + 1) - offset;
    }
    // One scan for both counts: entries in the low 12 bits, groups above.
    const int own = (num_rows > 0) | (num_rows + S::kGroupRows - 1) / S::kGroupRows << 12;
    int sum = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) counts[warp] = sum;
    __syncthreads();
    int before = sum - own, all = 0;
    for (int i = 0; i < S::kThreads / 32; ++i) {
      if (i < warp) before += counts[i];
      all += counts[i];
    }
    if (num_rows > 0) list[entries + (before & 4095)] = {expert, num_rows, offset, groups + (before >> 12)};
    entries += all & 4095, groups += all >> 12;
    __syncthreads();
  }
  if (threadIdx.x == 0) list[entries] = {0, 0, 0, groups};
  __syncthreads();
  return groups;
}

// Tile `index`, searched from that of a smaller index on; the groups of one block of lines are neighbours.
template <class S> __device__ __forceinline__ void locate(const Entry* list, int index, int blocks, Tile& tile) {
  while (index >= list[tile.entry + 1].group * blocks) ++tile.entry;
  const Entry& entry = list[tile.entry];
  const int groups = list[tile.entry + 1].group - entry.group, local = index - entry.group * blocks;
  tile.block = local / groups, tile.group = local % groups;
  tile.num_rows = min(entry.num_rows - tile.group * S::kGroupRows, S::kGroupRows);
}

// The tiles of a block: begin, begin + step, ... below end. Neighbours for few rows, so that a block stays with its rows;
// spread over the blocks for many, so that blocks share weights and rows in the L2 cache while they are there.
struct Range {
  int begin, end, step;
};
__device__ __forceinline__ Range own_tiles(int tiles, bool is_spread) {
  if (is_spread) return {(int)blockIdx.x, tiles, (int)gridDim.x};
  const auto edge = [&](int block) { return (int)((long long)tiles * block / gridDim.x); };
  return {edge(blockIdx.x), edge(blockIdx.x + 1), 1};
}

// Addresses of the stages of a block's tiles, one after the other.
template <class S> struct Cursor {
  const uint8_t *pieces = nullptr, *rows = nullptr;
  int num_bytes = 0, stage = 0, index = 0;
  bool is_shared = false;  // other groups of rows read the same pieces
  Tile tile = {};

  __device__ void enter(const Parameters& p, const Entry* list) {
    const int blocks = p.outputs / kTile;
    locate<S>(list, index, blocks, tile);
    const Entry& entry = list[tile.entry];
    pieces = p.pieces + ((size_t)entry.expert * blocks + tile.block) * (p.inputs / kStage) * kPieceBytes;
    const int first = p.is_alone ? 0 : first_row(entry.offset, entry.expert) + tile.group * S::kGroupRows;
    rows = p.rows + row_start(first, p.inputs);
    num_bytes = padded(tile.num_rows) * kRowBytes;
    is_shared = list[tile.entry + 1].group - entry.group > 1;
    stage = 0;
  }
  __device__ void advance(const Parameters& p, const Entry* list, const Range& own) {
    pieces += kPieceBytes, rows += num_bytes;
    if (++stage == p.inputs / kStage && (index += own.step) < own.end) enter(p, list);
  }
};

// The producer lane. Weights depend on no kernel before this one, so those of the first round are on their way while it
// waits for the rows.
template <class S>
__device__ void produce(const Parameters& p, const Entry* list, uint32_t ring, uint32_t full, uint32_t empty,
                        const Range& own) {
  const int tiles = own.begin < own.end ? (own.end - own.begin + own.step - 1) / own.step : 0;
  const int total = tiles * (p.inputs / kStage), ahead = min(S::kStages, total);
  const uint64_t once = evict_first_policy(), often = evict_last_policy();
  const auto load_weights = [&](const Cursor<S>& at, int slot) {
    const uint32_t barrier = full + 8 * slot, target = ring + slot * S::kSlotBytes;
    mbarrier_arrive_expect(barrier, kPieceBytes + at.num_bytes);
    if (at.is_shared) bulk_load(target, at.pieces, kPieceBytes, barrier);
    else bulk_load(target, at.pieces, kPieceBytes, barrier, once);
  };
  const auto load_rows = [&](const Cursor<S>& at, int slot) {
    bulk_load(ring + slot * S::kSlotBytes + kPieceBytes, at.rows, at.num_bytes, full + 8 * slot, often);
  };
  Cursor<S> at;
  at.index = own.begin;
  if (total) at.enter(p, list);
  Cursor<S> first = at;
  for (int i = 0; i < ahead; ++i, first.advance(p, list, own)) load_weights(first, i);
  grid_dependency_wait();
  for (int i = 0; i < ahead; ++i, at.advance(p, list, own)) load_rows(at, i);
  int slot = 0, phase = 0;
  for (int i = ahead; i < total; ++i, at.advance(p, list, own)) {
    mbarrier_wait(empty + 8 * slot, phase);
    load_weights(at, slot);
    load_rows(at, slot);
    if (++slot == S::kStages) slot = 0, phase ^= 1;
  }
}

// d[64 lines, 8 NG rows] (+)= A in registers [64, 32] x B in shared memory [32, 8 NG], e4m3.
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define R4 "%0,%1,%2,%3"
#define R8 R4 ",%4,%5,%6,%7"
#define R12 R8 ",%8,%9,%10,%11"
#define R16 R12 ",%12,%13,%14,%15"
#define R24 R16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define R32 R24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define R48 R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define R64 R48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA(N, D, A, B, ADDS, ...)                                                                         \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADDS ", 0;\nwgmma.mma_async.sync.aligned.m64n" N          \
               "k32.f32.e4m3.e4m3 {" D "}, {" A "}, " B ", p, 1, 1;\n}"                                      \
               : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds))
template <int NG> __device__ __forceinline__ void wgmma(float (&d)[4 * NG], const uint32_t (&a)[4], uint64_t b, int adds) {
  if constexpr (NG == 1) WGMMA("8", R4, "%4,%5,%6,%7", "%8", "%9", D4(0));
  if constexpr (NG == 2) WGMMA("16", R8, "%8,%9,%10,%11", "%12", "%13", D4(0), D4(4));
  if constexpr (NG == 3) WGMMA("24", R12, "%12,%13,%14,%15", "%16", "%17", D4(0), D4(4), D4(8));
  if constexpr (NG == 4) WGMMA("32", R16, "%16,%17,%18,%19", "%20", "%21", D16(0));
  if constexpr (NG == 6) WGMMA("48", R24, "%24,%25,%26,%27", "%28", "%29", D16(0), D4(16), D4(20));
  if constexpr (NG == 8) WGMMA("64", R32, "%32,%33,%34,%35", "%36", "%37", D16(0), D16(16));
  if constexpr (NG == 12) WGMMA("96", R48, "%48,%49,%50,%51", "%52", "%53", D16(0), D16(16), D16(32));
  if constexpr (NG == 16) WGMMA("128", R64, "%64,%65,%66,%67", "%68", "%69", D16(0), D16(16), D16(32), D16(48));
}

__device__ __forceinline__ uint32_t pick_bytes(uint32_t low, uint32_t high, uint32_t selectors) {
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selectors));
  return result;
}

// 8 codes of one line, in group `k` of four whose exponent bytes are `exponents`, to two registers of e4m3. The table
// holds e4m3's bytes of 0 .5 1 1.5 2 3 4 6 times 2^-5 and 2^exponent: 8 is one step of e4m3's exponent, and 0 stays 0.
template <bool RUN_EXPONENTS>
__device__ __forceinline__ void widen(uint32_t codes, uint32_t exponents, int k, uint32_t& near, uint32_t& far) {
  uint32_t exponent = pick_bytes(exponents, 0, 0x4440 + k);
  if constexpr (RUN_EXPONENTS) exponent &= 15;
  const uint32_t low = exponent * 0x08080800u + 0x14100800u, high = exponent * 0x08080808u + 0x24201C18u;
  const uint32_t magnitudes = codes & 0x77777777u;
  near = pick_bytes(low, high, magnitudes) | (codes & 0x80808080u);
  far = pick_bytes(low, high, magnitudes >> 16) | ((codes << 4) & 0x80808080u);
}

// A lane's operand for one run: 16 lines x 128 inputs.
template <bool RUN_EXPONENTS>
__device__ __forceinline__ void widen_run(const uint8_t* codes, uint32_t exponents, uint32_t exponents8,
                                          uint32_t (&a)[4][4]) {
  const uint4 x = *(const uint4*)codes, y = *(const uint4*)(codes + 512);
  const uint32_t line[4] = {x.x, x.z, y.x, y.z}, line8[4] = {x.y, x.w, y.y, y.w};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    widen<RUN_EXPONENTS>(line[k], exponents, k, a[k][0], a[k][2]);
    widen<RUN_EXPONENTS>(line8[k], exponents8, k, a[k][1], a[k][3]);
  }
}

// 2^(the run's own exponent), which stands in the high halves of the run's first two exponent bytes.
__device__ __forceinline__ float run_factor(uint32_t exponents) {
  return __uint_as_float((127 + ((exponents >> 4 & 15) | (exponents >> 8 & 0xF0))) << 23);
}

// acc += d * row scale; `scales` is at this lane's first row.
template <int NG, bool RUN_EXPONENTS>
__device__ __forceinline__ void add_run(float (&acc)[4 * NG], const float (&d)[4 * NG], const float* scales,
                                        uint32_t exponents, uint32_t exponents8) {
  float factor[2] = {1.f, 1.f};
  if constexpr (RUN_EXPONENTS) factor[0] = run_factor(exponents), factor[1] = run_factor(exponents8);
#pragma unroll
  for (int n = 0; n < NG; ++n) {
    const float2 scale = *(const float2*)(scales + 8 * n);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float part = d[4 * n + j];
      if constexpr (RUN_EXPONENTS) part *= factor[j / 2];
      acc[4 * n + j] = fmaf(part, j & 1 ? scale.y : scale.x, acc[4 * n + j]);
    }
  }
}

// What a consumer warp reads: the ring and where it stands in it.
struct Ring {
  const uint8_t* slots;
  uint32_t full, empty;
  int slot, phase;
};

// Sums of a tile: acc[slice][4 n + j] is line g (j < 2) or g + 8, row 8 n + 2 t + (j & 1). A product of NG groups of 8
// rows may be wider than the group of `rows` rows; what it reads behind them goes to sums that nobody stores.
template <class S, int NG, bool RUN_EXPONENTS>
__device__ __forceinline__ void sum_tile(float (&acc)[S::kMt][4 * NG], Ring& ring, int stages, int rows, int warp, int lane) {
  float d[4 * NG];
  uint32_t a[4][4];
#pragma unroll
  for (int i = 0; i < 4 * NG; ++i) d[i] = 0.f;
#pragma unroll
  for (int mt = 0; mt < S::kMt; ++mt)
#pragma unroll
    for (int i = 0; i < 4 * NG; ++i) acc[mt][i] = 0.f;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    mbarrier_wait(ring.full + 8 * ring.slot, ring.phase);
    const uint8_t* slot = ring.slots + ring.slot * S::kSlotBytes;
    const uint32_t values = shared_address(slot) + kPieceBytes;
    const float* scales = (const float*)(slot + kPieceBytes + kStage * rows) + 2 * (lane & 3);
#pragma unroll
    for (int mt = 0; mt < S::kMt; ++mt) {
      const int slice = warp + mt * S::kWarps;
      const uint4 both = *(const uint4*)(slot + kCodeBytes + slice * 128 + (lane >> 2) * 16);
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        const uint32_t exponents = run ? both.y : both.x, exponents8 = run ? both.w : both.z;
        widen_run<RUN_EXPONENTS>(slot + slice * 2048 + run * 1024 + lane * 16, exponents, exponents8, a);
        const uint64_t b = wgmma_swizzled(values + run * 128 * rows);
        wgmma_hold(d);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) wgmma<NG>(d, a[k], b + 2 * k, k > 0);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_hold(d);
        add_run<NG, RUN_EXPONENTS>(acc[mt], d, scales + run * rows, exponents, exponents8);
      }
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(ring.empty + 8 * ring.slot);
    if (++ring.slot == S::kStages) ring.slot = 0, ring.phase ^= 1;
  }
}

// NaN stays NaN.
__device__ __forceinline__ float at_most(float x, float limit) { return x > limit ? limit : x; }

// What a tile's last step needs from global memory, asked for before the sums so that nothing waits for it: a lane has the
// picks, or their weights, of rows lane, lane + 32, ..., and the bases of its lines.
template <class S> struct Ends {
  int pick[S::kGroupRows / 32];
  float weight[S::kGroupRows / 32];
  float2 base[S::kMt];

  template <bool SWIGLU>
  __device__ __forceinline__ void load(const Parameters& p, const Entry& entry, const Tile& tile, int warp, int lane) {
#pragma unroll
    for (int mt = 0; mt < S::kMt; ++mt) {
      const int slice = warp + mt * S::kWarps, g = lane >> 2;
      const float* base_at = p.base + (size_t)entry.expert * p.outputs;
      if constexpr (SWIGLU) {
        const int column = tile.block * 128 + slice * 8 + g;
        base[mt] = make_float2(__ldg(base_at + column), __ldg(base_at + p.outputs / 2 + column));
      } else {
        base[mt] = __ldg((const float2*)(base_at + tile.block * kTile + slice * 16 + 2 * g));
      }
    }
    const int* picks = p.order + entry.offset + tile.group * S::kGroupRows;
#pragma unroll
    for (int i = 0; i < S::kGroupRows / 32; ++i) {
      const int row = lane + 32 * i;
      pick[i] = row < tile.num_rows ? __ldcg(picks + row) : 0;
      if constexpr (SWIGLU) weight[i] = row < tile.num_rows ? __ldcg(p.weights + pick[i]) : 0.f;
    }
  }
};

// First product: lines g and g + 8 are gate and up of one column, and a tile's 128 columns share an FP8 scale a row.
template <class S, int NG>
__device__ __forceinline__ void store_inner(const float (&acc)[S::kMt][4 * NG], const Ends<S>& ends, const Parameters& p,
                                            const Entry& entry, const Tile& tile, uint8_t* shared, int round, int warp,
                                            int lane) {
  const int g = lane >> 2, t = lane & 3, thread = warp * 32 + lane, rows = padded(tile.num_rows), half = p.outputs / 2;
  uint8_t* codes = shared + S::kCodesAt;
  int* maxima = (int*)(shared + S::kMaximaAt) + (round & 1) * S::kGroupRows;
  float h[S::kMt][2 * NG];
#pragma unroll
  for (int mt = 0; mt < S::kMt; ++mt) {
#pragma unroll
    for (int i = 0; i < 2 * NG; ++i) {
      const int row = i / 2 * 8 + 2 * t + (i & 1), at = i / 2 * 4 + (i & 1);
      const float weight = __shfl_sync(~0u, ends.weight[i / 8], row & 31);
      const float gate = at_most(acc[mt][at] * ends.base[mt].x, p.limit);
      const float up = -at_most(-at_most(acc[mt][at + 2] * ends.base[mt].y, p.limit), p.limit);
      const float value = row < tile.num_rows ? __fdividef(gate, 1.f + __expf(-gate)) * up * weight : 0.f;
      h[mt][i] = value;
      // The largest of 8 columns, then of all warps. Bits compare as positive floats do, and NaN is the greatest.
      int most = __float_as_int(fabsf(value));
#pragma unroll
      for (int step = 4; step < 32; step *= 2) most = max(most, __shfl_xor_sync(~0u, most, step));
      if (g == 0 && row < rows) atomicMax(maxima + row, most);
    }
  }
  named_barrier_sync(1, 32 * S::kWarps);
  // 2^ceil(log2(amax / 448)) by its bits, as quantize_rows has it; NaN where a value is not finite.
  const auto scale_of = [&](int row) {
    if (maxima[row] >= 0x7F800000) return __int_as_float(0x7FFFFFFF);
    const uint32_t bits = __float_as_uint(fmaxf(__int_as_float(maxima[row]), kFp8Floor) * (1.f / kFp8Max));
    return __uint_as_float(((bits >> 23) + ((bits & 0x7FFFFF) != 0)) << 23);
  };
#pragma unroll
  for (int i = 0; i < 2 * NG; ++i) {
    const int row = i / 2 * 8 + 2 * t + (i & 1);
    if (row < rows) {
      // A power of two: its inverse is exact.
      const float inverse = 1.f / scale_of(row);
#pragma unroll
      for (int mt = 0; mt < S::kMt; ++mt) {
        const int column = (warp + mt * S::kWarps) * 8 + g;
        uint16_t pair;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.f), "f"(h[mt][i] * inverse));
        codes[row * 128 + ((column >> 4) ^ (row & 7)) * 16 + (column & 15)] = (uint8_t)pair;
      }
    }
  }
  if (thread < S::kGroupRows) ((int*)(shared + S::kMaximaAt))[((round + 1) & 1) * S::kGroupRows + thread] = 0;
  named_barrier_sync(1, 32 * S::kWarps);
  const int run = tile.block % kRuns;
  uint8_t* group = (uint8_t*)p.result + row_start(first_row(entry.offset, entry.expert) + tile.group * S::kGroupRows, half);
  uint8_t* target = group + (size_t)(tile.block / kRuns) * rows * kRowBytes;
  for (int i = thread; i < rows * 8; i += 32 * S::kWarps)
    *(uint4*)(target + run * 128 * rows + i * 16) = *(const uint4*)(codes + i * 16);
  if (thread < rows) *(float*)(target + rows * kStage + (run * rows + thread) * 4) = scale_of(thread);
}

// Second product: lines g and g + 8 are neighbouring outputs; rows go to their picks' places.
template <class S, int NG>
__device__ __forceinline__ void store_outputs(const float (&acc)[S::kMt][4 * NG], const Ends<S>& ends, const Parameters& p,
                                              const Tile& tile, int warp, int lane) {
  const int g = lane >> 2, t = lane & 3;
  __nv_bfloat16* result = (__nv_bfloat16*)p.result;
#pragma unroll
  for (int mt = 0; mt < S::kMt; ++mt) {
    const int output = tile.block * kTile + (warp + mt * S::kWarps) * 16 + 2 * g;
#pragma unroll
    for (int i = 0; i < 2 * NG; ++i) {
      const int row = i / 2 * 8 + 2 * t + (i & 1), at = i / 2 * 4 + (i & 1);
      const int pick = __shfl_sync(~0u, ends.pick[i / 8], row & 31);
      if (row < tile.num_rows)
        *(__nv_bfloat162*)(result + (size_t)pick * p.outputs + output) =
            __floats2bfloat162_rn(acc[mt][at] * ends.base[mt].x, acc[mt][at + 2] * ends.base[mt].y);
    }
  }
}

template <class S, bool SWIGLU, bool RUN_EXPONENTS>
__global__ void __launch_bounds__(S::kThreads, 1) multiply_experts(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t full = shared_address(shared + S::kBarriersAt), empty = full + 8 * S::kStages;
  Entry* list = (Entry*)(shared + S::kListAt);
  const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) mbarrier_init(full + 8 * i, 1), mbarrier_init(empty + 8 * i, S::kWarps);
    fence_barrier_init();
  }
  if (SWIGLU && threadIdx.x < S::kGroupRows) ((int*)(shared + S::kMaximaAt))[threadIdx.x] = 0;
  // No kernel ahead has waited for the routing yet where none gathers rows.
  if (p.is_alone) grid_dependency_wait();
  grid_dependency_launch();
  const int blocks = p.outputs / kTile;
  const int groups = list_experts<S>(p, list, (int*)(shared + S::kCountsAt));
  const Range own = own_tiles(groups * blocks, p.is_spread);
  if (warp >= S::kWarps) {
    give_registers<24>();
    if (threadIdx.x == 32 * S::kWarps) produce<S>(p, list, shared_address(shared), full, empty, own);
    return;
  }
  take_registers<S::kRegisters>();
  Ring ring{shared, full, empty, 0, 0};
  Tile tile = {};
  for (int index = own.begin, round = 0; index < own.end; index += own.step, ++round) {
    locate<S>(list, index, blocks, tile);
    const Entry entry = list[tile.entry];
    Ends<S> ends;
    ends.template load<SWIGLU>(p, entry, tile, warp, lane);
    const auto run = [&](auto width) {
      constexpr int kNg = decltype(width)::value;
      float acc[S::kMt][4 * kNg];
      sum_tile<S, kNg, RUN_EXPONENTS>(acc, ring, p.inputs / kStage, padded(tile.num_rows), warp, lane);
      if constexpr (SWIGLU) store_inner<S, kNg>(acc, ends, p, entry, tile, shared, round, warp, lane);
      else store_outputs<S, kNg>(acc, ends, p, tile, warp, lane);
    };
    S::with_width(tile.num_rows, run);
  }
}

template <class S, bool SWIGLU, bool RUN_EXPONENTS> cudaError_t launch(const Parameters& p, int blocks, cudaStream_t stream) {
  const auto kernel = multiply_experts<S, SWIGLU, RUN_EXPONENTS>;
  const int bytes = S::shared_bytes(p.experts);
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  return error != cudaSuccess ? error : launch_early(kernel, dim3(blocks), dim3(S::kThreads), bytes, stream, p);
}

// Groups of 32 and 64 rows take 16 warps and few stages of latency; groups of 128 take 8 warps with twice the lines each,
// so that a line of registers holds the sums of 128 rows.
template <bool SWIGLU> int choose(Parameters p, int group_rows, bool run_exponents, int blocks, void* stream) {
  const auto on = (cudaStream_t)stream;
  p.is_spread = group_rows > 32;
  if (group_rows == 32) {
    using S = Shape<4, 16, 5, SWIGLU>;
    return run_exponents ? launch<S, SWIGLU, true>(p, blocks, on) : launch<S, SWIGLU, false>(p, blocks, on);
  }
  if (group_rows == 64) {
    using S = Shape<8, 16, 4, SWIGLU>;
    return run_exponents ? launch<S, SWIGLU, true>(p, blocks, on) : launch<S, SWIGLU, false>(p, blocks, on);
  }
  if (group_rows == 128) {
    using S = Shape<16, 8, 3, SWIGLU>;
    return run_exponents ? launch<S, SWIGLU, true>(p, blocks, on) : launch<S, SWIGLU, false>(p, blocks, on);
  }
  return cudaErrorInvalidValue;
}

}  // namespace moe_experts

using namespace moe_experts;

// gate_up = rows W13^T, clamp, SwiGLU, weight, FP8: blocked rows [*, D] -> blocked rows [*, F]; outputs = 2 F. `is_alone`:
// `rows` is one row's blocked form for whichever experts take it; the other seven rows beside it may hold anything.
extern "C" int experts_w13(const void* pieces, const void* base, const void* rows, const void* offsets, const void* order,
                           const void* weights, void* inner, int experts, int outputs, int inputs, float limit,
                           int is_alone, int group_rows, int run_exponents, int blocks, void* stream) {
  const Parameters p{(const uint8_t*)pieces, (const float*)base, (const uint8_t*)rows, (const int*)offsets,
                     (const int*)order, (const float*)weights, inner, experts, outputs, inputs, 0, limit, is_alone};
  return choose<true>(p, group_rows, run_exponents, blocks, stream);
}

// rows W2^T in bfloat16: blocked rows [*, F] -> [picks, D], each in its pick's place.
extern "C" int experts_w2(const void* pieces, const void* base, const void* rows, const void* offsets, const void* order,
                          void* result, int experts, int outputs, int inputs, int group_rows, int run_exponents, int blocks,
                          void* stream) {
  const Parameters p{(const uint8_t*)pieces, (const float*)base, (const uint8_t*)rows, (const int*)offsets,
                     (const int*)order, nullptr, result, experts, outputs, inputs, 0, 0.f, 0};
  return choose<false>(p, group_rows, run_exponents, blocks, stream);
}
