// Attention of query rows to window and listed entries in V4's official rows, on Hopper: heads of 512, 64 a program.
//
// A row at position t lists its keys so: places 0..127 are positions t-127..t, places 128.. are entries, or picks, in
// their order. Blocks are 64 places of that list; what a row does not see scores -inf and adds exact zeros. The one
// order of a sum:
//   score of a block     32 steps of 16 columns in fp32
//   reference of a block the running maximum, which moves only when a block's maximum exceeds it by 2^8
//   sums of a row        weights in one fragment order, then block by block; 4 steps of 16 keys of a block in fp32
//   chunks               CHUNK blocks make a partial result; a row of more than one folds them in ascending order
// Queries, keys and weights are fp16, where e4m3 times 2^-15..2^7 is exact. Three kernels, two schedules, the same bits:
//   attend               a program runs a row's whole chunk                                   for many rows
//   scores, then values  blocks of a row spread over programs, then slices of its columns     for few
//   fold                 chunks into the result
// Warpgroups of `attend`: 0 and 1 take turns at blocks (scores, weights) and each sums half of the columns; 2 and 3
// gather, widen and store keys. A producer never fences: the fence would wait for the loads it has in flight.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>

#include "hopper.cuh"

using namespace hopper;

#ifndef ORDER
#define ORDER 1
#endif
#ifndef PARTS
#define PARTS 2
#endif
#ifndef READER_FENCES
#define READER_FENCES 1
#endif

namespace attention {

constexpr int BLOCK = 64, DIM = 512, CODES = 448, WINDOW_PLACES = 128, CHUNK = 26;
constexpr int TILE = BLOCK * 64 * 2;  // 64 rows x 64 columns of fp16 in the 128-byte swizzle
constexpr float LOG2_E = 1.4426950408889634f;

struct Call {
  const __nv_bfloat16* query;
  const uint8_t* keys;
  __nv_bfloat16* out;
  const float* sink;
  const long long *order, *queries, *positions, *used, *sequence, *window_table, *entry_table;
  const int* picks;
  const float *cosine, *sine;
  float *scores, *maxima, *partials, *sums;
  int first, heads, per_tile, num_picks, most_blocks, window_pages, window_page, window, entry_pages, entry_page,
      entry_base, ratio, row_bytes;
  float scale;  // of scores, times log2(e)
};

// What a program must know of its query row.
struct Row {
  int place, query, position, visible, listed, blocks, chunks;
  long long sequence;
};

__device__ __forceinline__ Row find_row(const Call& call, int number) {
  Row row;
  const int index = call.first + number;
  row.place = call.order != nullptr ? (int)__ldg(call.order + index) : index;
  const int tile = row.place / call.per_tile;
  row.query = (int)__ldg(call.queries + row.place);
  row.position = (int)__ldg(call.positions + row.place);
  row.sequence = __ldg(call.sequence + tile);
  row.visible = call.ratio > 0 ? (row.position + 1) / call.ratio : 0;
  row.listed = call.picks != nullptr ? min(row.visible, call.num_picks) : row.visible;
  row.blocks = (2 + (row.listed + BLOCK - 1) / BLOCK + 1) & ~1;  // a block of nothing evens them out
  if (call.order == nullptr && row.place % call.per_tile >= (int)__ldg(call.used + tile)) row.blocks = 0;
  row.chunks = (row.blocks + CHUNK - 1) / CHUNK;
  return row;
}

// Slot of a place of a row's list, -1 if the row does not see it.
__device__ __forceinline__ int find_slot(const Call& call, const Row& row, int place) {
  const long long* table;
  int page_size, index, base = 0;
  if (place < WINDOW_PLACES) {
    index = row.position - (WINDOW_PLACES - 1) + place;
    if (index < 0 || index <= row.position - call.window) return -1;
    table = call.window_table + row.sequence * call.window_pages;
    page_size = call.window_page;
  } else {
    index = place - WINDOW_PLACES;
    if (index >= row.listed) return -1;
    if (call.picks != nullptr) index = __ldg(call.picks + (size_t)row.place * call.num_picks + index);
    if (index < 0 || index >= row.visible) return -1;
    table = call.entry_table + row.sequence * call.entry_pages;
    page_size = call.entry_page;
    base = call.entry_base;
  }
  const unsigned page = (unsigned)index / (unsigned)page_size;
  return base + (int)__ldg(table + page) * page_size + (index - (int)page * page_size);
}

// True for the whole warp if that phase has ended for every lane's test.
__device__ __forceinline__ bool mbarrier_passed(uint32_t barrier, uint32_t parity) {
  uint32_t passed;
  asm volatile("{ .reg .pred P; mbarrier.test_wait.parity.shared::cta.b64 P, [%1], %2; selp.u32 %0, 1, 0, P; }"
               : "=r"(passed)
               : "r"(barrier), "r"(parity)
               : "memory");
  return __all_sync(~0u, passed);
}

// --- words of keys -------------------------------------------------------------------------------------------------

__device__ __forceinline__ uint4 load_16(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ uint2 load_8(const void* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
__device__ __forceinline__ void store_16(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_8(uint32_t address, uint2 v) {
  asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(address), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void store_4(uint32_t address, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
__device__ __forceinline__ uint32_t bytes_of(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t v;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(selector));
  return v;
}
__device__ __forceinline__ uint32_t two_halves(float low, float high) {
  uint32_t v;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
__device__ __forceinline__ uint32_t halves_of(uint32_t bf16s) {
  return two_halves(__uint_as_float(bf16s << 16), __uint_as_float(bf16s & 0xffff0000u));
}
__device__ __forceinline__ uint2 halves_of(uint32_t a, uint32_t b) { return make_uint2(halves_of(a), halves_of(b)); }
__device__ __forceinline__ uint4 halves_of(uint4 v) {
  return make_uint4(halves_of(v.x), halves_of(v.y), halves_of(v.z), halves_of(v.w));
}

// A UE8M0 byte to a pair of fp16 that take a code to its value. A code moved to bits 13..7 of a half is its value
// times 2^-8, subnormals included, so the pair holds 2^(e - 119): 0 below 2^-22 (values under fp16's), exact to 2^7.
__device__ __forceinline__ uint32_t scale_pair(uint2 scales, int group) {
  const uint32_t byte = ((group < 4 ? scales.x : scales.y) >> ((group & 3) * 8)) & 255;
  return (uint32_t)max((int)byte - 104, 0) * 0x04000400u;
}
// Four codes to fp16, in the order 0 2 1 3: one word gives its even bytes, then its odd ones. Queries are stored in
// the same order and the result is put back.
__device__ __forceinline__ uint2 widen(uint32_t codes, uint32_t scale) {
  const uint32_t even = ((codes << 8) & 0x80008000u) | ((codes << 7) & 0x3f803f80u);
  const uint32_t odd = (codes & 0x80008000u) | ((codes >> 1) & 0x3f803f80u);
  uint2 v;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(v.x) : "r"(even), "r"(scale));
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(v.y) : "r"(odd), "r"(scale));
  return v;
}
__device__ __forceinline__ uint4 widen(uint32_t a, uint32_t b, uint32_t scale) {
  const uint2 x = widen(a, scale), y = widen(b, scale);
  return make_uint4(x.x, x.y, y.x, y.y);
}
// Puts a pair of words of neighbouring lanes, columns 0 2 | 1 3, back into order.
__device__ __forceinline__ void reorder(uint32_t& a, uint32_t& b, int lane) {
  const bool odd = lane & 1;
  const uint32_t other = __shfl_xor_sync(~0u, bytes_of(a, b, odd ? 0x5410 : 0x7632), 1);
  a = bytes_of(a, other, odd ? 0x3254 : 0x5410);
  b = bytes_of(b, other, odd ? 0x3276 : 0x7610);
}
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// --- products: fp16 operands in shared memory, 128-byte swizzle, fp32 accumulators ---------------------------------

__device__ __forceinline__ uint64_t operand(uint32_t address, uint32_t leading, uint32_t stride) {
  return wgmma_descriptor(address, leading, stride) | (1ull << 62);
}

__device__ __forceinline__ void mma_n64(float (&d)[32], uint64_t a, uint64_t b, int keep) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %34, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
      "%23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, %32, %33, p, 1, 1, 0, 0; }"
      :
      "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), 
      "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), 
      "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), 
      "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b), "r"(keep));
}

__device__ __forceinline__ void mma_n32_by_columns(float (&d)[16], uint64_t a, uint64_t b, int keep) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %18, 0; "
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
      "}, %16, %17, p, 1, 1, 0, 1; }"
      :
      "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), 
      "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "l"(a), "l"(b), "r"(keep));
}

__device__ __forceinline__ void mma_n64_by_columns(float (&d)[32], uint64_t a, uint64_t b, int keep) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %34, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
      "%23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, %32, %33, p, 1, 1, 0, 1; }"
      :
      "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), 
      "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), 
      "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), 
      "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b), "r"(keep));
}

__device__ __forceinline__ void mma_n128_by_columns(float (&d)[64], uint64_t a, uint64_t b, int keep) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %66, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
      "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
      "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, p, 1, 1, 0, 1; }"
      :
      "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), 
      "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), 
      "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), 
      "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), 
      "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), 
      "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), 
      "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), 
      "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "l"(a), "l"(b), "r"(keep));
}

// --- what lies where in shared memory ------------------------------------------------------------------------------

enum Schedule { WHOLE, SCORES };

// `attend` and `scores`: queries, two stages of keys, weights of two blocks, tables.
struct Shared {
  static constexpr int STAGES = 2, STAGE = 8 * TILE;
  static constexpr int QUERY = 0, KEYS = 8 * TILE, WEIGHTS = KEYS + STAGES * STAGE, SLOTS = WEIGHTS + 2 * TILE,
                       REFERENCE = SLOTS + CHUNK * BLOCK * 4, SUM = REFERENCE + 512, FACTOR = SUM + 512,
                       FULL = FACTOR + 512, EMPTY = FULL + 8 * STAGES * PARTS, READY = EMPTY + 8 * STAGES,
                       END = READY + 16, BYTES = END + 1024;
};
// `values`: stages of WIDTH columns of keys, weights of six blocks, tables of a whole chunk.
template <int WIDTH>
struct SharedValues {
  static constexpr int STAGES = 8, WAITING = 6, TILES = WIDTH / 64, STAGE = TILES * TILE, TABLE = CHUNK * BLOCK * 4;
  static constexpr int KEYS = 0, WEIGHTS = STAGES * STAGE, SLOTS = WEIGHTS + WAITING * TILE, REFERENCE = SLOTS + TABLE,
                       SUM = REFERENCE + TABLE, FACTOR = SUM + TABLE, FULL = FACTOR + TABLE, EMPTY = FULL + 8 * STAGES,
                       READY = EMPTY + 8 * STAGES, FREE = READY + 8 * WAITING, END = FREE + 8 * WAITING,
                       BYTES = END + 1024;
};
extern __shared__ uint8_t shared_bytes[];
__device__ __forceinline__ uint8_t* shared_start() {
  return (uint8_t*)(((uintptr_t)shared_bytes + 1023) & ~(uintptr_t)1023);
}
__device__ __forceinline__ void find_slots(const Call& call, const Row& row, int first, int end, int* slots) {
  for (int i = threadIdx.x; i < (end - first) * BLOCK; i += blockDim.x)
    slots[i] = find_slot(call, row, first * BLOCK + i);
}

// --- keys to shared memory -----------------------------------------------------------------------------------------

// Whole rows, by 256 threads: four lanes a row. Words of the next block are requested as those of this one are used.
struct KeyWords {
  uint4 words[9];
  uint2 last;
  __device__ __forceinline__ void load(int i, const uint8_t* row, bool is_seen, int lane) {
    words[i] = is_seen ? load_16(row + i * 64 + lane * 16) : make_uint4(0, 0, 0, 0);
  }
  __device__ __forceinline__ void load_last(const uint8_t* row, bool is_seen, int lane) {
    last = is_seen && lane == 0 ? load_8(row + 576) : make_uint2(0, 0);
  }
};

__device__ __forceinline__ void bring_keys(const Call& call, int num_blocks, const int* slots, uint32_t shared) {
  const int thread = threadIdx.x - 256, key = thread >> 2, lane = thread & 3, turn = key & 7;
  const uint32_t full = shared + Shared::FULL, empty = shared + Shared::EMPTY;
  KeyWords k;
  {
    const int slot = slots[key];
    const uint8_t* row = call.keys + (size_t)max(slot, 0) * call.row_bytes;
#pragma unroll
    for (int i = 0; i < 9; ++i) k.load(i, row, slot >= 0, lane);
    k.load_last(row, slot >= 0, lane);
  }
  const uint32_t line = shared + Shared::KEYS + key * 128;
  for (int n = 0; n < num_blocks; ++n) {
    const int stage = n & 1;
    const int slot = n + 1 < num_blocks ? slots[(n + 1) * BLOCK + key] : -1;
    const uint8_t* row = call.keys + (size_t)max(slot, 0) * call.row_bytes;
    const uint32_t target = line + stage * Shared::STAGE, codes = target + (((2 * lane) ^ turn) << 4);
    if (n >= 2) mbarrier_wait(empty + 8 * stage, (n / 2 - 1) & 1);
    // The first word after the codes holds the scales.
    const uint2 scales = make_uint2(__shfl_sync(~0u, k.words[7].x, threadIdx.x & 28),
                                    __shfl_sync(~0u, k.words[7].y, threadIdx.x & 28));
    auto publish = [&](int part) {
      if (!READER_FENCES) fence_proxy_async();
      __syncwarp();
      if ((threadIdx.x & 31) == 0) mbarrier_arrive(full + 8 * (stage * PARTS + part));
    };
#pragma unroll
    for (int i = 0; i < 7; ++i) {
      const uint32_t scale = scale_pair(scales, i);
      store_16(codes + i * TILE, widen(k.words[i].x, k.words[i].y, scale));
      store_16((codes + i * TILE) ^ 16, widen(k.words[i].z, k.words[i].w, scale));
      k.load(i, row, slot >= 0, lane);
      if ((i + 1) % (8 / PARTS) == 0) publish(i / (8 / PARTS));
    }
    // Rotary columns come in words of four, one word later than the lines of 64 bytes.
    const uint32_t rotary = target + 7 * TILE;
    if (lane > 0) store_8(rotary + (((lane - 1) ^ turn) << 4) + 8, halves_of(k.words[7].x, k.words[7].y));
    store_8(rotary + ((lane ^ turn) << 4), halves_of(k.words[7].z, k.words[7].w));
    store_8(rotary + (((lane + 3) ^ turn) << 4) + 8, halves_of(k.words[8].x, k.words[8].y));
    store_8(rotary + (((lane + 4) ^ turn) << 4), halves_of(k.words[8].z, k.words[8].w));
    if (lane == 0) store_8(rotary + ((7 ^ turn) << 4) + 8, halves_of(k.last.x, k.last.y));
    k.load(7, row, slot >= 0, lane);
    k.load(8, row, slot >= 0, lane);
    k.load_last(row, slot >= 0, lane);
    publish(PARTS - 1);
  }
}

// Columns first_tile * 64 .. of keys, by 256 threads, DEPTH blocks requested ahead.
template <int WIDTH, int DEPTH>
__device__ __forceinline__ void bring_values(const Call& call, int num_blocks, int first_tile, const int* slots,
                                             uint32_t shared) {
  using S = SharedValues<WIDTH>;
  const int thread = threadIdx.x - 256, key = thread >> 2, lane = thread & 3;
  const uint32_t full = shared + S::FULL, empty = shared + S::EMPTY;
  uint4 words[DEPTH][S::TILES + 1];
  uint32_t scales[DEPTH];
  auto load = [&](int n, int u) {
    const int slot = n < num_blocks ? slots[n * BLOCK + key] : -1;
    const uint8_t* row = call.keys + (size_t)max(slot, 0) * call.row_bytes;
    scales[u] = 0;
#pragma unroll
    for (int i = 0; i < S::TILES; ++i) {
      const int tile = first_tile + i;
      words[u][i] = make_uint4(0, 0, 0, 0);
      if (slot >= 0 && tile < 7) {
        words[u][i] = load_16(row + tile * 64 + lane * 16);
        scales[u] |= (uint32_t)__ldg(row + CODES + tile) << (8 * i);
      }
      if (tile == 7) {
        words[u][S::TILES] = make_uint4(0, 0, 0, 0);
        if (slot >= 0) {
          const uint8_t* rotary = row + CODES + 8 + lane * 32;
          const uint2 a = load_8(rotary), b = load_8(rotary + 8), c = load_8(rotary + 16), d = load_8(rotary + 24);
          words[u][i] = make_uint4(a.x, a.y, b.x, b.y);
          words[u][S::TILES] = make_uint4(c.x, c.y, d.x, d.y);
        }
      }
    }
  };
#pragma unroll
  for (int u = 0; u < DEPTH; ++u) load(u, u);
  const uint32_t line = shared + S::KEYS + key * 128 + (((2 * lane) ^ (key & 7)) << 4);
  for (int block = 0; block < num_blocks; block += DEPTH) {
#pragma unroll
    for (int u = 0; u < DEPTH; ++u) {
      const int n = block + u, stage = n % S::STAGES;
      if (n < num_blocks) {
        if (n >= S::STAGES) mbarrier_wait(empty + 8 * stage, (n / S::STAGES - 1) & 1);
        const uint32_t target = line + stage * S::STAGE;
#pragma unroll
        for (int i = 0; i < S::TILES; ++i) {
          uint4 a, b;
          if (first_tile + i < 7) {
            const uint32_t scale = scale_pair(make_uint2(scales[u], 0), i);
            a = widen(words[u][i].x, words[u][i].y, scale);
            b = widen(words[u][i].z, words[u][i].w, scale);
          } else {
            a = halves_of(words[u][i]);
            b = halves_of(words[u][S::TILES]);
          }
          store_16(target + i * TILE, a);
          store_16((target + i * TILE) ^ 16, b);
        }
        if (!READER_FENCES) fence_proxy_async();
        __syncwarp();
        if ((threadIdx.x & 31) == 0) mbarrier_arrive(full + 8 * stage);
        load(n + DEPTH, u);
      }
    }
  }
}

// 64 heads of a row's query to fp16 in shared memory, codes' columns in the order of `widen`; by 256 threads.
__device__ __forceinline__ void bring_query(const __nv_bfloat16* query, uint32_t shared) {
  uint4 v[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) v[i] = load_16((const uint4*)query + i * 256 + threadIdx.x);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int unit = i * 256 + threadIdx.x, head = unit >> 6, eight = unit & 63;
    uint4 h = halves_of(v[i]);
    if (eight * 8 < CODES)
      h = make_uint4(bytes_of(h.x, h.y, 0x5410), bytes_of(h.x, h.y, 0x7632), bytes_of(h.z, h.w, 0x5410),
                     bytes_of(h.z, h.w, 0x7632));
    store_16(shared + Shared::QUERY + (eight >> 3) * TILE + head * 128 + (((eight & 7) ^ (head & 7)) << 4), h);
  }
  fence_proxy_async();
  named_barrier_sync(1, 256);
}

// --- the arithmetic of the one order; a thread holds rows r, r + 8 and, of each eight columns, two ------------------

// Issues the scores of a block; its keys may still be arriving part by part.
__device__ __forceinline__ void issue_scores(float (&s)[32], int stage, int parity, uint32_t shared) {
  uint64_t q = operand(shared + Shared::QUERY, 16, 1024), k = operand(shared + Shared::KEYS + stage * Shared::STAGE, 16, 1024);
  asm volatile("" : "+l"(q), "+l"(k));  // opaque: or the compiler keeps all descriptors live across blocks and spills
  wgmma_hold(s);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i % (8 / PARTS) == 0) {
      mbarrier_wait(shared + Shared::FULL + 8 * (stage * PARTS + i / (8 / PARTS)), parity);
      if (READER_FENCES) fence_proxy_async();
      wgmma_fence();
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) mma_n64(s, q + i * (TILE >> 4) + j * 2, k + i * (TILE >> 4) + j * 2, i + j);
  }
  wgmma_commit();
}
// Issues the weighted sum of a block into 2 * N columns.
template <int N>
__device__ __forceinline__ void issue_values(float (&o)[N], uint32_t weights, uint32_t keys) {
  uint64_t a = operand(weights, 16, 1024), b = operand(keys, TILE, 1024);
  asm volatile("" : "+l"(a), "+l"(b));
  wgmma_hold(o);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (N == 128) {
      mma_n128_by_columns(*(float(*)[64])&o[0], a + i * 2, b + i * 128, 1);
      mma_n128_by_columns(*(float(*)[64])&o[64], a + i * 2, b + i * 128 + 2 * (TILE >> 4), 1);
    } else if constexpr (N == 32) {
      mma_n64_by_columns(o, a + i * 2, b + i * 128, 1);
    } else {
      mma_n32_by_columns(o, a + i * 2, b + i * 128, 1);
    }
  }
  wgmma_commit();
}
__device__ __forceinline__ void hide_unseen(float (&s)[32], const int* slots, int lane) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int2 slot = *(const int2*)(slots + 8 * j + (lane & 3) * 2);
    if (slot.x < 0) s[4 * j] = s[4 * j + 2] = -INFINITY;
    if (slot.y < 0) s[4 * j + 1] = s[4 * j + 3] = -INFINITY;
  }
}
__device__ __forceinline__ void maxima_of(const float (&s)[32], float& a, float& b) {
  float u[4] = {s[0], s[1], s[4], s[5]}, v[4] = {s[2], s[3], s[6], s[7]};
#pragma unroll
  for (int j = 2; j < 8; ++j) {
    u[(j & 1) * 2] = fmaxf(u[(j & 1) * 2], s[4 * j]);
    u[(j & 1) * 2 + 1] = fmaxf(u[(j & 1) * 2 + 1], s[4 * j + 1]);
    v[(j & 1) * 2] = fmaxf(v[(j & 1) * 2], s[4 * j + 2]);
    v[(j & 1) * 2 + 1] = fmaxf(v[(j & 1) * 2 + 1], s[4 * j + 3]);
  }
  a = fmaxf(fmaxf(u[0], u[1]), fmaxf(u[2], u[3]));
  b = fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3]));
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    a = fmaxf(a, __shfl_xor_sync(~0u, a, step));
    b = fmaxf(b, __shfl_xor_sync(~0u, b, step));
  }
}
// The reference after block n with maximum `top`, and the factor that takes older sums to it. Units of raw scores.
__device__ __forceinline__ void advance(const Call& call, int n, float top, float old, float& reference, float& factor) {
  const float tolerance = __fdiv_rn(8.f, call.scale);
  reference = n == 0 ? fmaxf(top, -1e30f) : (top > __fadd_rn(old, tolerance) ? top : old);
  factor = (n == 0 || reference == old) ? 1.f : power_of_two(__fmul_rn(__fsub_rn(old, reference), call.scale));
}
// Weights of a block in place of its scores, and the sums of both rows.
__device__ __forceinline__ void weigh(float (&s)[32], float m0, float m1, float scale, float& sum0, float& sum1) {
  const float b0 = __fmul_rn(m0, -scale), b1 = __fmul_rn(m1, -scale);
  float u[4] = {}, v[4] = {};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int k = (j & 1) * 2;
    s[4 * j] = power_of_two(__fmaf_rn(s[4 * j], scale, b0));
    s[4 * j + 1] = power_of_two(__fmaf_rn(s[4 * j + 1], scale, b0));
    s[4 * j + 2] = power_of_two(__fmaf_rn(s[4 * j + 2], scale, b1));
    s[4 * j + 3] = power_of_two(__fmaf_rn(s[4 * j + 3], scale, b1));
    u[k] = __fadd_rn(u[k], s[4 * j]);
    u[k + 1] = __fadd_rn(u[k + 1], s[4 * j + 1]);
    v[k] = __fadd_rn(v[k], s[4 * j + 2]);
    v[k + 1] = __fadd_rn(v[k + 1], s[4 * j + 3]);
  }
  sum0 = __fadd_rn(__fadd_rn(u[0], u[1]), __fadd_rn(u[2], u[3]));
  sum1 = __fadd_rn(__fadd_rn(v[0], v[1]), __fadd_rn(v[2], v[3]));
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    sum0 = __fadd_rn(sum0, __shfl_xor_sync(~0u, sum0, step));
    sum1 = __fadd_rn(sum1, __shfl_xor_sync(~0u, sum1, step));
  }
}
__device__ __forceinline__ void store_weights(const float (&s)[32], uint32_t weights, int r, int lane) {
  const uint32_t line = weights + r * 128 + (lane & 3) * 4;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint32_t column = (uint32_t)((j ^ (r & 7)) << 4);
    store_4(line + column, two_halves(s[4 * j], s[4 * j + 1]));
    store_4(line + 1024 + column, two_halves(s[4 * j + 2], s[4 * j + 3]));
  }
}
// Takes a row's sums to a new reference; rare, so products in flight are waited for.
template <int N>
__device__ __forceinline__ void rescale(float (&o)[N], const float* factor, int r) {
  const float a = factor[r], b = factor[r + 8];
  if (__any_sync(~0u, (a != 1.f) | (b != 1.f))) {
    wgmma_wait<0>();
    wgmma_hold(o);
#pragma unroll
    for (int j = 0; j < N / 4; ++j) {
      o[4 * j] *= a;
      o[4 * j + 1] *= a;
      o[4 * j + 2] *= b;
      o[4 * j + 3] *= b;
    }
  }
}

// --- results -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ float sink_weight(float sink, float reference, float scale) {
  return power_of_two(__fmaf_rn(sink, LOG2_E, __fmul_rn(reference, -scale)));
}
__device__ __forceinline__ uint32_t rounded(float a, float b) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
  return *(const uint32_t*)&v;
}
// Turns a rotary pair back by its row's angle, as `apply_rope` does to the rounded result.
__device__ __forceinline__ uint32_t turned_back(uint32_t pair, float cosine, float sine) {
  const float a = __uint_as_float(pair << 16), b = __uint_as_float(pair & 0xffff0000u);
  return rounded(__fadd_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)),
                 __fsub_rn(__fmul_rn(b, cosine), __fmul_rn(a, sine)));
}
// Eight columns `column` .. of rows r and r + 8, divided and rounded, in the order of the result.
__device__ __forceinline__ void finish(const Call& call, const Row& row, const float* o, float i0, float i1, int column,
                                       int lane, uint32_t& a, uint32_t& b) {
  a = rounded(__fmul_rn(o[0], i0), __fmul_rn(o[1], i0));
  b = rounded(__fmul_rn(o[2], i1), __fmul_rn(o[3], i1));
  if (column < CODES) {
    reorder(a, b, lane);
  } else if (call.cosine != nullptr) {
    const size_t pair = (size_t)row.query * 32 + (column - CODES) / 2 + (lane & 3);
    const float cosine = __ldg(call.cosine + pair), sine = __ldg(call.sine + pair);
    a = turned_back(a, cosine, sine);
    b = turned_back(b, cosine, sine);
  }
}
struct Unit {
  int number, chunk, head, out;  // of row and heads; first head; first row [.., 512] of the result
};
// Writes 2 * N columns from `column` on of a warpgroup's 64 heads: the result, or a chunk's partial one.
template <int N>
__device__ __forceinline__ void write(const Call& call, const Row& row, const Unit& unit, float (&o)[N], int column,
                                      const float* reference, const float* sum, uint32_t staging, int barrier) {
  const int thread = threadIdx.x & 127, lane = thread & 31, r = (thread >> 5) * 16 + (lane >> 2);
  if (row.chunks > 1) {
    const size_t item = (size_t)unit.number * ((call.most_blocks + CHUNK - 1) / CHUNK) + unit.chunk;
    float4* target = (float4*)call.partials + item * 8192;
#pragma unroll
    for (int j = 0; j < N / 4; ++j)
      target[(column / 8 + j) * 128 + thread] = make_float4(o[4 * j], o[4 * j + 1], o[4 * j + 2], o[4 * j + 3]);
    if (column == 0 && thread < BLOCK) {
      call.sums[item * 128 + thread] = reference[thread];
      call.sums[item * 128 + 64 + thread] = sum[thread];
    }
    return;
  }
  const float i0 = __frcp_rn(__fadd_rn(sum[r], sink_weight(call.sink[unit.head + r], reference[r], call.scale)));
  const float i1 = __frcp_rn(__fadd_rn(sum[r + 8], sink_weight(call.sink[unit.head + r + 8], reference[r + 8], call.scale)));
  constexpr int COLUMNS = 2 * N, EIGHTS = COLUMNS / 8, MASK = EIGHTS >= 8 ? 7 : 3;
#pragma unroll
  for (int j = 0; j < EIGHTS; ++j) {
    uint32_t a, b;
    finish(call, row, o + 4 * j, i0, i1, column + 8 * j, lane, a, b);
    const uint32_t place = (uint32_t)((j & ~MASK) | ((j ^ r) & MASK)) * 16 + (lane & 3) * 4;
    store_4(staging + r * COLUMNS * 2 + place, a);
    store_4(staging + (r + 8) * COLUMNS * 2 + place, b);
  }
  named_barrier_sync(barrier, 128);
  __nv_bfloat16* target = call.out + (size_t)unit.out * DIM + column;
#pragma unroll
  for (int i = 0; i < BLOCK * EIGHTS / 128; ++i) {
    const int number = i * 128 + thread, line = number / EIGHTS, j = number % EIGHTS;
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(staging + line * COLUMNS * 2 + ((j & ~MASK) | ((j ^ line) & MASK)) * 16));
    *(uint4*)(target + (size_t)line * DIM + j * 8) = v;
  }
}

// --- attend --------------------------------------------------------------------------------------------------------

// One warpgroup's chain: scores of blocks n with n % 2 == SIDE, half SIDE of the columns of every block.
template <int SIDE>
__device__ __forceinline__ void run_chain(const Call& call, float (&o)[128], int num_blocks, uint8_t* memory,
                                          uint32_t shared) {
  const int thread = threadIdx.x & 127, lane = thread & 31, r = (thread >> 5) * 16 + (lane >> 2);
  const uint32_t empty = shared + Shared::EMPTY, ready = shared + Shared::READY;
  float* references = (float*)(memory + Shared::REFERENCE);
  float* sums = (float*)(memory + Shared::SUM);
  float* factors = (float*)(memory + Shared::FACTOR);
  float s[32], m0, m1, f0, f1, l0, l1;
  auto scores = [&](int n) { issue_scores(s, n & 1, (n >> 1) & 1, shared); };
  auto weights = [&](int n) {
    wgmma_hold(s);
    hide_unseen(s, (const int*)(memory + Shared::SLOTS) + n * BLOCK, lane);
    const int before = ((n & 1) ^ 1) * 64;
    float top0, top1, old0 = 0.f, old1 = 0.f, sum0 = 0.f, sum1 = 0.f, t0, t1;
    maxima_of(s, top0, top1);
    if (n > 0) {
      old0 = references[before + r], old1 = references[before + r + 8];
      sum0 = sums[before + r], sum1 = sums[before + r + 8];
    }
    advance(call, n, top0, old0, m0, f0);
    advance(call, n, top1, old1, m1, f1);
    weigh(s, m0, m1, call.scale, t0, t1);
    l0 = __fmaf_rn(sum0, f0, t0);
    l1 = __fmaf_rn(sum1, f1, t1);
  };
  auto publish = [&](int n) {
    if (n >= 2) mbarrier_wait(empty + 8 * (n & 1), (n / 2 - 1) & 1);  // both have used the weights of block n - 2
    store_weights(s, shared + Shared::WEIGHTS + (n & 1) * TILE, r, lane);
    if ((lane & 3) == 0) {
      const int at = (n & 1) * 64 + r;
      references[at] = m0, references[at + 8] = m1;
      factors[at] = f0, factors[at + 8] = f1;
      sums[at] = l0, sums[at + 8] = l1;
    }
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(ready + 8 * (n & 1));
  };
  auto begin_values = [&](int n) {
    mbarrier_wait(ready + 8 * (n & 1), (n >> 1) & 1);
    if (READER_FENCES) fence_proxy_async();
    rescale(o, factors + (n & 1) * 64, r);
    issue_values(o, shared + Shared::WEIGHTS + (n & 1) * TILE,
                 shared + Shared::KEYS + (n & 1) * Shared::STAGE + SIDE * 4 * TILE);
  };
  auto release = [&](int n) {
    wgmma_hold(o);
    if (lane == 0) mbarrier_arrive(empty + 8 * (n & 1));
  };
  auto values = [&](int n) { begin_values(n), wgmma_wait<0>(), release(n); };
  // Values of block n, which the other warpgroup weighed, and weights of block n + 1.
  auto turn = [&](int n) {
    if (ORDER == 0) {
      scores(n + 1), begin_values(n), wgmma_wait<1>();
      weights(n + 1), wgmma_wait<0>(), release(n), publish(n + 1);
    } else if (ORDER == 1) {
      begin_values(n), scores(n + 1), wgmma_wait<1>(), release(n);
      wgmma_wait<0>(), weights(n + 1), publish(n + 1);
    } else {  // scores first where the keys are there, else values
      const bool is_there = mbarrier_passed(shared + Shared::FULL + 8 * (((n + 1) & 1) * PARTS + PARTS - 1), ((n + 1) >> 1) & 1);
      if (is_there) {
        scores(n + 1), begin_values(n), wgmma_wait<1>();
        weights(n + 1), wgmma_wait<0>(), release(n), publish(n + 1);
      } else {
        begin_values(n), wgmma_wait<0>(), release(n), scores(n + 1);
        wgmma_wait<0>(), weights(n + 1), publish(n + 1);
      }
    }
  };
  if constexpr (SIDE == 0) {
    scores(0), wgmma_wait<0>(), weights(0), publish(0);
    for (int n = 0; n + 2 < num_blocks; n += 2) values(n), turn(n + 1);
    values(num_blocks - 2), values(num_blocks - 1);
  } else {
    for (int n = 0; n < num_blocks; n += 2) turn(n), values(n + 1);
  }
}

template <int SCHEDULE>
__device__ __forceinline__ void prepare(uint32_t shared) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared::STAGES * PARTS; ++i) mbarrier_init(shared + Shared::FULL + 8 * i, 8);
    for (int i = 0; i < Shared::STAGES; ++i) {
      mbarrier_init(shared + Shared::EMPTY + 8 * i, SCHEDULE == SCORES ? 4 : 8);
      mbarrier_init(shared + Shared::READY + 8 * i, 4);
    }
    fence_barrier_init();
  }
}

__global__ void __launch_bounds__(512, 1) attend(const __grid_constant__ Call call) {
  uint8_t* memory = shared_start();
  const uint32_t shared = shared_address(memory);
  const int groups = call.heads / 64, most_chunks = (call.most_blocks + CHUNK - 1) / CHUNK;
  Unit unit;
  unit.number = blockIdx.x / most_chunks, unit.chunk = blockIdx.x % most_chunks;
  const Row row = find_row(call, unit.number / groups);
  if (unit.chunk >= row.chunks) return;
  unit.head = unit.number % groups * 64, unit.out = (call.first + unit.number / groups) * call.heads + unit.head;
  const int first = unit.chunk * CHUNK, num_blocks = min(row.blocks - first, CHUNK), side = threadIdx.x >> 7;
  prepare<WHOLE>(shared);
  int* slots = (int*)(memory + Shared::SLOTS);
  find_slots(call, row, first, first + num_blocks, slots);
  __syncthreads();
  if (side >= 2) {
    give_registers<64>();
    bring_keys(call, num_blocks, slots, shared);
    return;
  }
  take_registers<192>();
  bring_query(call.query + ((size_t)row.query * call.heads + unit.head) * DIM, shared);
  float o[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) o[i] = 0.f;
  if (side == 0) run_chain<0>(call, o, num_blocks, memory, shared);
  else run_chain<1>(call, o, num_blocks, memory, shared);
  // Staged over stage 0: its last block has been used by both before the last weights were made.
  named_barrier_sync(2 + side, 128);
  write(call, row, unit, o, side * 256, (float*)(memory + Shared::REFERENCE) + 64, (float*)(memory + Shared::SUM) + 64,
        shared + Shared::KEYS + side * 4 * TILE, 2 + side);
}

// --- scores, then values -------------------------------------------------------------------------------------------

// Raw scores, in a thread's own order, and maxima of `each` blocks of a row. grid (runs of blocks, units)
__global__ void __launch_bounds__(512, 1) scores(const __grid_constant__ Call call, int each) {
  uint8_t* memory = shared_start();
  const uint32_t shared = shared_address(memory);
  const int groups = call.heads / 64, number = blockIdx.y, head = number % groups * 64, first = blockIdx.x * each;
  grid_dependency_launch();
  const Row row = find_row(call, number / groups);
  const int num_blocks = min(row.blocks - first, each);
  if (num_blocks <= 0) return;
  prepare<SCORES>(shared);
  int* slots = (int*)(memory + Shared::SLOTS);
  find_slots(call, row, first, first + num_blocks, slots);
  __syncthreads();
  if (threadIdx.x >= 256) return bring_keys(call, num_blocks, slots, shared);
  bring_query(call.query + ((size_t)row.query * call.heads + head) * DIM, shared);
  const int side = threadIdx.x >> 7, thread = threadIdx.x & 127, lane = thread & 31;
  const int r = (thread >> 5) * 16 + (lane >> 2);
  float s[32];
  for (int n = side; n < num_blocks; n += 2) {
    issue_scores(s, side, (n >> 1) & 1, shared);
    wgmma_wait<0>();
    wgmma_hold(s);
    if (lane == 0) mbarrier_arrive(shared + Shared::EMPTY + 8 * side);
    hide_unseen(s, slots + n * BLOCK, lane);
    float top0, top1;
    maxima_of(s, top0, top1);
    const size_t item = (size_t)number * call.most_blocks + first + n;
    if ((lane & 3) == 0) {
      call.maxima[item * 64 + r] = top0;
      call.maxima[item * 64 + r + 8] = top1;
    }
    float4* target = (float4*)call.scores + item * 1024;
#pragma unroll
    for (int j = 0; j < 8; ++j) target[j * 128 + thread] = make_float4(s[4 * j], s[4 * j + 1], s[4 * j + 2], s[4 * j + 3]);
  }
}

__device__ __forceinline__ void read_scores(float (&s)[32], const float* scores, int thread) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float4 v = __ldcg((const float4*)scores + j * 128 + thread);
    s[4 * j] = v.x, s[4 * j + 1] = v.y, s[4 * j + 2] = v.z, s[4 * j + 3] = v.w;
  }
}

// WIDTH columns of a row's chunk: warpgroups 0 and 1 sum, 2 and 3 bring keys, 4 to 6 turn scores into weights.
// grid (chunks x slices, units)
template <int WIDTH, int DEPTH>
__global__ void __launch_bounds__(896, 1) values(const __grid_constant__ Call call) {
  using S = SharedValues<WIDTH>;
  constexpr int N = WIDTH / 4;
  uint8_t* memory = shared_start();
  const uint32_t shared = shared_address(memory);
  const int groups = call.heads / 64, slices = DIM / WIDTH, slice = blockIdx.x % slices;
  Unit unit;
  unit.number = blockIdx.y, unit.chunk = blockIdx.x / slices;
  const Row row = find_row(call, unit.number / groups);
  if (unit.chunk >= row.chunks) return;
  unit.head = unit.number % groups * 64, unit.out = (call.first + unit.number / groups) * call.heads + unit.head;
  const int first = unit.chunk * CHUNK, num_blocks = min(row.blocks - first, CHUNK);
  const uint32_t full = shared + S::FULL, empty = shared + S::EMPTY, ready = shared + S::READY, free = shared + S::FREE;
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::STAGES; ++i) mbarrier_init(full + 8 * i, 8), mbarrier_init(empty + 8 * i, 8);
    for (int i = 0; i < S::WAITING; ++i) mbarrier_init(ready + 8 * i, 4), mbarrier_init(free + 8 * i, 8);
    fence_barrier_init();
  }
  int* slots = (int*)(memory + S::SLOTS);
  find_slots(call, row, first, first + num_blocks, slots);
  __syncthreads();
  const int side = threadIdx.x >> 7, thread = threadIdx.x & 127, lane = thread & 31;
  const int r = (thread >> 5) * 16 + (lane >> 2);
  float* references = (float*)(memory + S::REFERENCE);
  float* sums = (float*)(memory + S::SUM);
  float* factors = (float*)(memory + S::FACTOR);
  if (side == 2 || side == 3) {
    bring_values<WIDTH, DEPTH>(call, num_blocks, slice * S::TILES, slots, shared);
    return;
  }
  if (side >= 4) {
    const int maker = side - 4;
    const size_t item = (size_t)unit.number * call.most_blocks + first;
    const float* found = call.scores + item * 4096;
    grid_dependency_wait();
    float s[32];
    if (maker < num_blocks) read_scores(s, found + (size_t)maker * 4096, thread);
    const float4* tops = (const float4*)(call.maxima + item * 64);
    for (int i = threadIdx.x - 512; i < num_blocks * 16; i += 384) ((float4*)references)[i] = __ldcg(tops + i);
    named_barrier_sync(5, 384);
    if (maker == 2 && thread < BLOCK) {
      float reference = 0.f, factor;
      for (int n = 0; n < num_blocks; ++n) {
        advance(call, n, references[n * 64 + thread], reference, reference, factor);
        references[n * 64 + thread] = reference;
        factors[n * 64 + thread] = factor;
      }
    }
    named_barrier_sync(4, 640);
    for (int n = maker; n < num_blocks; n += 3) {
      float t0, t1;
      weigh(s, references[n * 64 + r], references[n * 64 + r + 8], call.scale, t0, t1);
      if ((lane & 3) == 0) sums[n * 64 + r] = t0, sums[n * 64 + r + 8] = t1;
      if (n >= S::WAITING) mbarrier_wait(free + 8 * (n % S::WAITING), (n / S::WAITING - 1) & 1);
      store_weights(s, shared + S::WEIGHTS + (n % S::WAITING) * TILE, r, lane);
      if (n + 3 < num_blocks) read_scores(s, found + (size_t)(n + 3) * 4096, thread);
      fence_proxy_async();
      __syncwarp();
      if (lane == 0) mbarrier_arrive(ready + 8 * (n % S::WAITING));
    }
    return;
  }
  float o[N];
#pragma unroll
  for (int i = 0; i < N; ++i) o[i] = 0.f;
  named_barrier_sync(4, 640);
  for (int n = 0; n < num_blocks; ++n) {
    const int stage = n % S::STAGES, place = n % S::WAITING;
    mbarrier_wait(ready + 8 * place, (n / S::WAITING) & 1);
    rescale(o, factors + n * 64, r);
    mbarrier_wait(full + 8 * stage, (n / S::STAGES) & 1);
    if (READER_FENCES) fence_proxy_async();
    const int column = side * (WIDTH / 2);
    issue_values(o, shared + S::WEIGHTS + place * TILE,
                 shared + S::KEYS + stage * S::STAGE + (column >> 6) * TILE + (column & 63) * 2);
    wgmma_wait<0>();
    wgmma_hold(o);
    if (lane == 0) mbarrier_arrive(empty + 8 * stage), mbarrier_arrive(free + 8 * place);
  }
  float sum = 0.f;
  if (thread < BLOCK)
    for (int n = 0; n < num_blocks; ++n) sum = __fmaf_rn(sum, factors[n * 64 + thread], sums[n * 64 + thread]);
  named_barrier_sync(1, 256);
  float* last = sums + (num_blocks - 1) * 64;
  if (side == 0 && thread < BLOCK) last[thread] = sum;
  named_barrier_sync(1, 256);
  write(call, row, unit, o, slice * WIDTH + side * (WIDTH / 2), references + (num_blocks - 1) * 64, last,
        shared + S::KEYS + side * (BLOCK * WIDTH), 2 + side);
}

// --- fold ----------------------------------------------------------------------------------------------------------

// Chunks of a row in ascending order. grid (units, 16), 256 threads: 32 columns a program.
__global__ void __launch_bounds__(256) fold(const __grid_constant__ Call call) {
  const int thread = threadIdx.x & 127, lane = thread & 31, r = (thread >> 5) * 16 + (lane >> 2);
  const int groups = call.heads / 64, number = blockIdx.x, head = number % groups * 64;
  const Row row = find_row(call, number / groups);
  if (row.chunks <= 1) return;
  grid_dependency_wait();
  const size_t item = (size_t)number * ((call.most_blocks + CHUNK - 1) / CHUNK);
  const float* sums = call.sums + item * 128;
  float m0 = -1e30f, m1 = -1e30f;
  for (int k = 0; k < row.chunks; ++k) {
    m0 = fmaxf(m0, __ldcg(sums + k * 128 + r));
    m1 = fmaxf(m1, __ldcg(sums + k * 128 + r + 8));
  }
  float l0 = sink_weight(call.sink[head + r], m0, call.scale), l1 = sink_weight(call.sink[head + r + 8], m1, call.scale);
  float4 total[2] = {};
  const int eight = blockIdx.y * 4 + (threadIdx.x >> 7) * 2;
#pragma unroll 4
  for (int k = 0; k < row.chunks; ++k) {
    const float* of = sums + k * 128 + r;
    const float f0 = power_of_two(__fmul_rn(__fsub_rn(__ldcg(of), m0), call.scale));
    const float f1 = power_of_two(__fmul_rn(__fsub_rn(__ldcg(of + 8), m1), call.scale));
    l0 = __fmaf_rn(__ldcg(of + 64), f0, l0);
    l1 = __fmaf_rn(__ldcg(of + 72), f1, l1);
    const float4* partial = (const float4*)call.partials + (item + k) * 8192;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float4 v = __ldcg(partial + (eight + j) * 128 + thread);
      total[j].x = __fmaf_rn(v.x, f0, total[j].x), total[j].y = __fmaf_rn(v.y, f0, total[j].y);
      total[j].z = __fmaf_rn(v.z, f1, total[j].z), total[j].w = __fmaf_rn(v.w, f1, total[j].w);
    }
  }
  const float i0 = __frcp_rn(l0), i1 = __frcp_rn(l1);
  __nv_bfloat16* target = call.out + ((size_t)(call.first + number / groups) * call.heads + head) * DIM;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    uint32_t a, b;
    const int column = (eight + j) * 8;
    finish(call, row, (const float*)&total[j], i0, i1, column, lane, a, b);
    *(uint32_t*)(target + (size_t)r * DIM + column + (lane & 3) * 2) = a;
    *(uint32_t*)(target + (size_t)(r + 8) * DIM + column + (lane & 3) * 2) = b;
  }
}

template <typename Kernel, typename... Rest>
int launch(Kernel kernel, dim3 grid, int threads, int bytes, bool early, cudaStream_t stream, const Call& call, Rest... rest) {
  if (bytes > 48 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return (int)error;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid, config.blockDim = dim3(threads), config.dynamicSmemBytes = bytes, config.stream = stream;
  cudaLaunchAttribute attribute[1];
  attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute[0].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attribute, config.numAttrs = early ? 1 : 0;
  return (int)cudaLaunchKernelEx(&config, kernel, call, rest...);
}

}  // namespace attention

// `tensors` in the order of Call's pointers, `sizes` in the order of its integers and then the number of rows.
// `each`: 0 for whole rows in one program; else blocks of a program of `scores`, and slices of `width` columns.
using namespace attention;

extern "C" int sparse_attention(void* const* tensors, const int* sizes, float scale, int each, int width, int depth, void* stream) {
  Call call;
  memcpy(&call, tensors, 18 * sizeof(void*));
  memcpy(&call.first, sizes, 13 * sizeof(int));
  call.scale = scale * LOG2_E;
  const int units = sizes[13] * (call.heads / 64), chunks = (call.most_blocks + CHUNK - 1) / CHUNK;
  const cudaStream_t on = (cudaStream_t)stream;
  int error;
  if (each == 0) {
    error = launch(attend, dim3(units * chunks), 512, Shared::BYTES, false, on, call);
  } else {
    error = launch(scores, dim3((call.most_blocks + each - 1) / each, units), 512, Shared::BYTES, false, on, call, each);
    if (error) return error;
    const dim3 grid(DIM / width * chunks, units);
    if (width == 64 && depth == 4) error = launch(values<64, 4>, grid, 896, SharedValues<64>::BYTES, true, on, call);
    else if (width == 64) error = launch(values<64, 1>, grid, 896, SharedValues<64>::BYTES, true, on, call);
    else if (depth == 3) error = launch(values<128, 3>, grid, 896, SharedValues<128>::BYTES, true, on, call);
    else error = launch(values<128, 1>, grid, 896, SharedValues<128>::BYTES, true, on, call);
  }
  if (error || chunks == 1) return error;
  return launch(fold, dim3(units, 16), 256, 0, each != 0, on, call);
}
