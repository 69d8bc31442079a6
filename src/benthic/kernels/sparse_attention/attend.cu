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
      entry_base, ratio, row_bytes, num_places;
  float scale;      // of scores, times log2(e)
  float tolerance;  // of raw scores, by which a maximum may exceed the reference
  int most_chunks;  // of `most_blocks`
};

// What a program must know of its query row.
struct Row {
  int place, query, position, visible, listed, blocks, chunks;
  long long sequence;
};

__device__ __forceinline__ Row find_row(const Call& call, int number) {
  Row row;
  const int index = call.first + number;
  // Most rows lie at the place of their own number: what is there is requested before the place is known.
  const int guess = min(index, call.num_places - 1);
  int used = (int)__ldg(call.used + guess / call.per_tile);
  row.query = (int)__ldg(call.queries + guess);
  row.position = (int)__ldg(call.positions + guess);
  row.sequence = __ldg(call.sequence + guess / call.per_tile);
  row.place = call.order != nullptr ? (int)__ldg(call.order + index) : index;
  if (row.place != guess) {
    used = (int)__ldg(call.used + row.place / call.per_tile);
    row.query = (int)__ldg(call.queries + row.place);
    row.position = (int)__ldg(call.positions + row.place);
    row.sequence = __ldg(call.sequence + row.place / call.per_tile);
  }
  row.visible = call.ratio > 0 ? (row.position + 1) / call.ratio : 0;
  row.listed = call.picks != nullptr ? min(row.visible, call.num_picks) : row.visible;
  row.blocks = 2 + (row.listed + BLOCK - 1) / BLOCK;
  if (call.order == nullptr && row.place % call.per_tile >= used) row.blocks = 0;
  row.chunks = (row.blocks + CHUNK - 1) / CHUNK;
  return row;
}
// Requests the picks of a row at the place of its number, before its place is known; by all threads of a program.
__device__ __forceinline__ void prefetch_picks(const Call& call, int number) {
  const int index = call.first + number;
  if (call.picks == nullptr || index >= call.num_places || threadIdx.x * 32 >= call.num_picks) return;
  asm volatile("prefetch.global.L2 [%0];" ::"l"(call.picks + (size_t)index * call.num_picks + threadIdx.x * 32));
}

// What a place of a row's list names: a position in its window, else an entry; -1 for nothing. A pick may name an
// entry that the row does not see.
__device__ __forceinline__ int find_key(const Call& call, const Row& row, int place) {
  if (place < WINDOW_PLACES) {
    const int position = row.position - (WINDOW_PLACES - 1) + place;
    return position > row.position - call.window ? max(position, -1) : -1;
  }
  const int entry = place - WINDOW_PLACES;
  if (entry >= row.listed) return -1;
  return call.picks != nullptr ? __ldg(call.picks + (size_t)row.place * call.num_picks + entry) : entry;
}
// Where a key lies: slot `start + page * page_size`, nowhere if `start` is below 0. Nothing here waits for `page`.
struct Place {
  int page, page_size, start;
  __device__ __forceinline__ int slot() const { return start < 0 ? -1 : start + page * page_size; }
};
__device__ __forceinline__ Place find_place(const Call& call, const Row& row, bool is_window, int key) {
  if (key < 0 || (!is_window && key >= row.visible)) return {0, 0, -1};
  const int page_size = is_window ? call.window_page : call.entry_page, page = (unsigned)key / (unsigned)page_size;
  const long long* table = is_window ? call.window_table + row.sequence * call.window_pages
                                     : call.entry_table + row.sequence * call.entry_pages;
  const int start = (is_window ? 0 : call.entry_base) + key - page * page_size;
  return {__ldg((const int*)(table + page)), page_size, start};  // the low half of an int64
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
__device__ __forceinline__ uint32_t load_shared_4(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ uint2 load_shared_8(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
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

// Four lanes hold words 0..3 of each of four lines; afterwards lane i holds line i.
__device__ __forceinline__ uint4 gather_line(uint32_t (&line)[4], int lane) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool upper = lane & step;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      const uint32_t other = __shfl_xor_sync(~0u, upper ? line[i] : line[i + step], step);
      if (upper) line[i] = other;
      else line[i + step] = other;
    }
  }
  return make_uint4(line[0], line[1], line[2], line[3]);
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

// The first operand in registers.
__device__ __forceinline__ void mma_n64_held(float (&d)[32], const uint32_t* a, uint64_t b, int keep) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %37, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
      "%23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0; }"
      :
      "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), 
      "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), 
      "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), 
      "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
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

// `attend`: half of the query, two stages of keys, weights of two blocks, raw rows on their way, tables.
struct Shared {
  static constexpr int STAGE = 8 * TILE, ROW = 592, BATCH = 8 * ROW;
  static constexpr int QUERY = 0, KEYS = 4 * TILE, WEIGHTS = KEYS + 2 * STAGE, RAW = WEIGHTS + 2 * TILE,
                       RAW_SEEN = RAW + 8 * BATCH, UNSEEN = RAW_SEEN + 256, FACTOR = UNSEEN + 512, END = FACTOR + 512,
                       ITEMS = END + 1024, ROWS = ITEMS + 64, FULL = ROWS + 256, EMPTY = FULL + 16, READY = EMPTY + 16,
                       RAW_FULL = READY + 16, BYTES = RAW_FULL + 64 + 1024;
};
// `scores`: the query, two stages of keys that arrive in PARTS, slots of a program's blocks.
struct SharedScores {
  static constexpr int STAGE = 8 * TILE, PARTS = 2, MOST_BLOCKS = 8;
  static constexpr int QUERY = 0, KEYS = 8 * TILE, SLOTS = KEYS + 2 * STAGE, FULL = SLOTS + MOST_BLOCKS * BLOCK * 4,
                       EMPTY = FULL + 16 * PARTS, BYTES = EMPTY + 16 + 1024;
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
// By `threads` threads of which this is number `thread`.
__device__ __forceinline__ void find_slots(const Call& call, const Row& row, int first, int num_blocks, int* slots,
                                           int thread, int threads) {
  for (int i = thread; i < num_blocks * BLOCK; i += threads) {
    const int place = first * BLOCK + i;
    slots[i] = find_place(call, row, place < WINDOW_PLACES, find_key(call, row, place)).slot();
  }
}
// A chunk of a row for 64 heads: what a program of `attend` does at a time.
struct Item {
  int number, query, blocks, chunks;
};
// The item of that number or the next one of this program; number -1 if there is none.
__device__ __forceinline__ Item next_item(const Call& call, int number, int total, Row& row) {
  const int most_chunks = call.most_chunks;
  for (; number < total; number += gridDim.x) {
    row = find_row(call, number / most_chunks / (call.heads / 64));
    if (number % most_chunks < row.chunks)
      return {number, row.query, min(row.blocks - number % most_chunks * CHUNK, CHUNK), row.chunks};
  }
  return {-1, 0, 0, 0};
}

// --- keys to shared memory -----------------------------------------------------------------------------------------

// Whole rows, by 256 threads: four lanes a row. A row of zeros where nothing is seen.
struct KeyWords {
  uint4 words[9];
  uint2 last, scales;
  __device__ __forceinline__ void load(const Call& call, int slot, int lane) {
    const uint8_t* row = call.keys + (size_t)max(slot, 0) * call.row_bytes;
    if (slot >= 0) {
      scales = load_8(row + CODES);
#pragma unroll
      for (int i = 0; i < 9; ++i) words[i] = load_16(row + i * 64 + lane * 16);
      last = load_8(row + 576);
    } else {
      scales = last = make_uint2(0, 0);
#pragma unroll
      for (int i = 0; i < 9; ++i) words[i] = make_uint4(0, 0, 0, 0);
    }
  }
};

__device__ __forceinline__ void bring_keys(const Call& call, int num_blocks, const int* slots, uint32_t shared) {
  const int thread = threadIdx.x - 256, key = thread >> 2, lane = thread & 3, turn = key & 7;
  const uint32_t full = shared + SharedScores::FULL, empty = shared + SharedScores::EMPTY;
  KeyWords k;
  k.load(call, slots[key], lane);
  const uint32_t line = shared + SharedScores::KEYS + key * 128;
  for (int n = 0; n < num_blocks; ++n) {
    const int stage = n & 1;
    const uint32_t target = line + stage * SharedScores::STAGE, codes = target + (((2 * lane) ^ turn) << 4);
    if (n >= 2) mbarrier_wait(empty + 8 * stage, (n / 2 - 1) & 1);
    auto publish = [&](int part) {
      __syncwarp();
      if ((threadIdx.x & 31) == 0) mbarrier_arrive(full + 8 * (stage * SharedScores::PARTS + part));
    };
#pragma unroll
    for (int i = 0; i < 7; ++i) {
      const uint32_t scale = scale_pair(k.scales, i);
      store_16(codes + i * TILE, widen(k.words[i].x, k.words[i].y, scale));
      store_16((codes + i * TILE) ^ 16, widen(k.words[i].z, k.words[i].w, scale));
      if ((i + 1) % (8 / SharedScores::PARTS) == 0) publish(i / (8 / SharedScores::PARTS));
    }
    // Rotary columns come in words of four, one word later than the lines of 64 bytes.
    const uint32_t rotary = target + 7 * TILE;
    if (lane > 0) store_8(rotary + (((lane - 1) ^ turn) << 4) + 8, halves_of(k.words[7].x, k.words[7].y));
    store_8(rotary + ((lane ^ turn) << 4), halves_of(k.words[7].z, k.words[7].w));
    store_8(rotary + (((lane + 3) ^ turn) << 4) + 8, halves_of(k.words[8].x, k.words[8].y));
    store_8(rotary + (((lane + 4) ^ turn) << 4), halves_of(k.words[8].z, k.words[8].w));
    if (lane == 0) store_8(rotary + ((7 ^ turn) << 4) + 8, halves_of(k.last.x, k.last.y));
    publish(SharedScores::PARTS - 1);
    if (n + 1 < num_blocks) k.load(call, slots[(n + 1) * BLOCK + key], lane);
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
        __syncwarp();
        if ((threadIdx.x & 31) == 0) mbarrier_arrive(full + 8 * stage);
        load(n + DEPTH, u);
      }
    }
  }
}

// Columns of `half` .. of 64 heads of a row's query to fp16 in shared memory, codes' columns in the order of `widen`;
// by THREADS threads.
template <int THREADS, int FIRST_TILE>
__device__ __forceinline__ void bring_query(const __nv_bfloat16* query, uint32_t shared, int thread) {
  constexpr int EIGHTS = (8 - FIRST_TILE) * 8, COUNT = BLOCK * EIGHTS / THREADS;
  uint4 v[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int unit = i * THREADS + thread;
    v[i] = load_16((const uint4*)query + unit / EIGHTS * (DIM / 8) + FIRST_TILE * 8 + unit % EIGHTS);
  }
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int unit = i * THREADS + thread, head = unit / EIGHTS, eight = unit % EIGHTS;
    uint4 h = halves_of(v[i]);
    if (FIRST_TILE * 64 + eight * 8 < CODES)
      h = make_uint4(bytes_of(h.x, h.y, 0x5410), bytes_of(h.x, h.y, 0x7632), bytes_of(h.z, h.w, 0x5410),
                     bytes_of(h.z, h.w, 0x7632));
    store_16(shared + (eight >> 3) * TILE + head * 128 + (((eight & 7) ^ (head & 7)) << 4), h);
  }
}
// Steps 0..15 of a warpgroup's query as first operands in registers, from the same columns in the same order.
__device__ __forceinline__ void hold_query(const __nv_bfloat16* query, uint32_t (&held)[64], int r, int lane) {
#pragma unroll
  for (int first = 0; first < 16; first += 8) {
    uint4 v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
      v[i] = load_16(query + (size_t)(r + (i & 1) * 8) * DIM + ((first + i) >> 1) * 32 + (lane & 3) * 8);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint4 h = halves_of(v[i]);
      uint32_t line[4] = {bytes_of(h.x, h.y, 0x5410), bytes_of(h.x, h.y, 0x7632), bytes_of(h.z, h.w, 0x5410),
                          bytes_of(h.z, h.w, 0x7632)};
      const uint4 turned = gather_line(line, lane);  // word lane & 3 of every eight columns
      uint32_t* step = held + ((first + i) >> 1) * 8 + (i & 1);
      step[0] = turned.x, step[2] = turned.y, step[4] = turned.z, step[6] = turned.w;
    }
  }
}

// --- the arithmetic of the one order; a thread holds rows r, r + 8 and, of each eight columns, two ------------------

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
  reference = n == 0 ? fmaxf(top, -1e30f) : (top > __fadd_rn(old, call.tolerance) ? top : old);
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
  uint32_t line = weights + r * 128 + ((r & 7) << 4) + (lane & 3) * 4;
  asm volatile("" : "+r"(line));  // opaque: or eight addresses stay in registers
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    store_4(line ^ (j << 4), two_halves(s[4 * j], s[4 * j + 1]));
    store_4((line ^ (j << 4)) + 1024, two_halves(s[4 * j + 2], s[4 * j + 3]));
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
__device__ __forceinline__ void finish(const Call& call, int query, const float* o, float i0, float i1, int column,
                                       int lane, uint32_t& a, uint32_t& b) {
  a = rounded(__fmul_rn(o[0], i0), __fmul_rn(o[1], i0));
  b = rounded(__fmul_rn(o[2], i1), __fmul_rn(o[3], i1));
  if (column < CODES) {
    reorder(a, b, lane);
  } else if (call.cosine != nullptr) {
    const size_t pair = (size_t)query * 32 + (column - CODES) / 2 + (lane & 3);
    const float cosine = __ldg(call.cosine + pair), sine = __ldg(call.sine + pair);
    a = turned_back(a, cosine, sine);
    b = turned_back(b, cosine, sine);
  }
}
// Final reference and sum of a thread's rows r and r + 8.
struct Ends {
  float m0, m1, l0, l1;
};
// Writes 2 * N columns from `column` on of a warpgroup's 64 heads: the result, or a chunk's partial one.
template <int N>
__device__ __forceinline__ void write(const Call& call, const Item& item, float (&o)[N], int column, const Ends& ends) {
  const int thread = threadIdx.x & 127, lane = thread & 31, r = (thread >> 5) * 16 + (lane >> 2);
  if (item.chunks > 1) {
    float4* target = (float4*)call.partials + (size_t)item.number * 8192;
#pragma unroll
    for (int j = 0; j < N / 4; ++j)
      target[(column / 8 + j) * 128 + thread] = make_float4(o[4 * j], o[4 * j + 1], o[4 * j + 2], o[4 * j + 3]);
    if (column == 0 && (lane & 3) == 0) {
      float* sums = call.sums + (size_t)item.number * 128;
      sums[r] = ends.m0, sums[r + 8] = ends.m1, sums[64 + r] = ends.l0, sums[72 + r] = ends.l1;
    }
    return;
  }
  const int unit = item.number / call.most_chunks, groups = call.heads / 64;
  const int head = unit % groups * 64 + r;
  const float i0 = __frcp_rn(__fadd_rn(ends.l0, sink_weight(call.sink[head], ends.m0, call.scale)));
  const float i1 = __frcp_rn(__fadd_rn(ends.l1, sink_weight(call.sink[head + 8], ends.m1, call.scale)));
  __nv_bfloat16* target = call.out + ((size_t)(call.first + unit / groups) * call.heads + head) * DIM + column;
#pragma unroll
  for (int j = 0; j < N / 4; j += 4) {
    uint32_t a[4], b[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      finish(call, item.query, o + 4 * (j + i), i0, i1, column + 8 * (j + i), lane, a[i], b[i]);
    *(uint4*)(target + (j + (lane & 3)) * 8) = gather_line(a, lane);
    *(uint4*)(target + 8 * DIM + (j + (lane & 3)) * 8) = gather_line(b, lane);
  }
}

// --- attend --------------------------------------------------------------------------------------------------------

// What the scoring warpgroup tells the summing ones of an item. number -1: there are no more.
__device__ __forceinline__ Item* item_at(uint8_t* memory, int k) { return (Item*)(memory + Shared::ITEMS) + (k & 3); }

// Columns of eight raw rows to fp16 in a stage: sixteen lanes a row, eight codes a lane; `line` is the first row's.
// Four rows' words are read before any is stored, so that no read waits for another. The last group of codes has eight
// lanes' work a row: either half of a row's lanes takes one row of two.
__device__ __forceinline__ void widen_rows(uint32_t raw, uint32_t seen, uint32_t unseen, uint32_t line, int lane) {
  asm volatile("" : "+r"(lane));  // opaque: or addresses of every row stay in registers
  const int half = lane >> 4, word = lane & 15, upper = word >> 3, chunk = word & 7, last = upper * 2 + half;
  // Of rows 0 or 1 (of the last group: 0 to 3); other rows differ by their lines and by bits of the swizzle.
  const uint32_t from = raw + half * Shared::ROW + word * 8;
  const uint32_t last_from = raw + last * Shared::ROW + 6 * 64 + chunk * 8;
  const uint32_t to = line + half * 128 + upper * TILE + ((chunk ^ half) << 4);
  const uint32_t rotary_to = line + half * 128 + 7 * TILE + (((word >> 1) ^ half) << 4) + (word & 1) * 8;
  const uint32_t last_to = line + last * 128 + 6 * TILE + ((chunk ^ last) << 4);
#pragma unroll
  for (int quad = 0; quad < 8; quad += 4) {
    uint32_t is_seen[2];  // all ones or zero
    uint2 scales[2], codes[2][3], rotary[2];
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const int row = quad + pair * 2;
      is_seen[pair] = load_shared_4(seen + (row + half) * 4);
      scales[pair] = load_shared_8(from + row * Shared::ROW + CODES - word * 8);
#pragma unroll
      for (int i = 0; i < 3; ++i) codes[pair][i] = load_shared_8(from + row * Shared::ROW + i * 128);
      rotary[pair] = load_shared_8(from + row * Shared::ROW + CODES + 8);
    }
    const uint2 last_codes = load_shared_8(last_from + quad * Shared::ROW);
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const int row = quad + pair * 2;
      scales[pair].x &= is_seen[pair], scales[pair].y &= is_seen[pair];
      uint2 s = scales[pair];
      if (upper) s.x = __funnelshift_r(s.x, s.y, 8), s.y >>= 8;
#pragma unroll
      for (int i = 0; i < 3; ++i)
        store_16((to ^ (row << 4)) + row * 128 + i * 2 * TILE,
                 widen(codes[pair][i].x, codes[pair][i].y, scale_pair(s, i * 2)));
      store_8((rotary_to ^ (row << 4)) + row * 128,
              halves_of(rotary[pair].x & is_seen[pair], rotary[pair].y & is_seen[pair]));
      if (word == 0) store_4(unseen + (row + half) * 4, ~is_seen[pair]);
    }
    store_16((last_to ^ (quad << 4)) + quad * 128,
             widen(last_codes.x, last_codes.y, scale_pair(upper ? scales[1] : scales[0], 6)));
  }
}

// A producing warp's part: rows 16 * warp .. of every block of this program's items. Raw rows come a block ahead by
// bulk copies, eight at a time; their slots are found a block earlier, what the list names one more.
__device__ __forceinline__ void bring_items(const Call& call, const Row& first_row, const Item& item, int total,
                                            uint8_t* memory, uint32_t shared) {
  const int warp = (threadIdx.x >> 5) & 3, lane = threadIdx.x & 31;
  const uint32_t raw = shared + Shared::RAW + warp * 2 * Shared::BATCH, raw_seen = shared + Shared::RAW_SEEN + warp * 64;
  const uint32_t raw_full = shared + Shared::RAW_FULL + warp * 16;
  // Where the list is read, two blocks ahead. The row lies in shared memory: there are no registers for it.
  Row* row = (Row*)(memory + Shared::ROWS) + warp;
  int number = item.number, block = number % call.most_chunks * CHUNK, end = block + item.blocks;
  auto keep = [&](const Row& found) {
    __syncwarp();
    if (lane == 0) *row = found;
    __syncwarp();
  };
  auto key = [&] { return find_key(call, *row, block * BLOCK + warp * 16 + (lane & 15)); };
  auto locate = [&](int found) { return find_place(call, *row, block < WINDOW_PLACES / BLOCK, found); };
  auto step = [&] {
    if (++block < end) return true;
    Row found;
    const Item another = next_item(call, number + gridDim.x, total, found);
    number = another.number, block = number % call.most_chunks * CHUNK, end = block + another.blocks;
    if (number >= 0) keep(found);
    return number >= 0;
  };
  keep(first_row);
  auto request = [&](int batch, int slot) {
    const bool is_mine = (lane >> 3) == batch, is_seen = is_mine && slot >= 0;
    const int count = __popc(__ballot_sync(~0u, is_seen));
    if (is_mine) store_4(raw_seen + lane * 4, is_seen ? ~0u : 0u);
    if (lane == 0) mbarrier_arrive_expect(raw_full + batch * 8, count * Shared::ROW);
    __syncwarp();
    if (is_seen)
      bulk_load(raw + lane * Shared::ROW, call.keys + (size_t)slot * call.row_bytes, Shared::ROW, raw_full + batch * 8);
  };
  Place next = locate(key());
  bool has_next = step(), has_second = false;
  int found = has_next ? key() : -1;
  request(0, next.slot()), request(1, next.slot());
  if (has_next) {
    next = locate(found);
    has_second = step();
    found = has_second ? key() : -1;
  }
  for (int n = 0;; ++n) {  // raw rows: of block n; next: of block n + 1; found: of block n + 2
    const int stage = n & 1;
    if (n >= 2) mbarrier_wait(shared + Shared::EMPTY + 8 * stage, (n / 2 - 1) & 1);
#pragma unroll 1
    for (int batch = 0; batch < 2; ++batch) {
      const int first = warp * 16 + batch * 8;
      mbarrier_wait(raw_full + batch * 8, n & 1);
      widen_rows(raw + batch * Shared::BATCH, raw_seen + batch * 32, shared + Shared::UNSEEN + stage * 256 + first * 4,
                 shared + Shared::KEYS + stage * Shared::STAGE + first * 128, lane);
      __syncwarp();
      if (has_next) request(batch, next.slot());
    }
    if (lane == 0) mbarrier_arrive(shared + Shared::FULL + 8 * stage);
    if (!has_next) return;
    has_next = has_second;
    if (has_second) {
      next = locate(found);
      has_second = step();
      found = has_second ? key() : -1;
    }
  }
}

// The scoring warpgroup: half of the query in registers, and a chain of references and sums.
__device__ __forceinline__ void score_items(const Call& call, Row row, Item item, int total, uint8_t* memory,
                                            uint32_t shared) {
  const int thread = threadIdx.x & 127, lane = thread & 31, r = (thread >> 5) * 16 + (lane >> 2);
  const int groups = call.heads / 64;
  int all = 0;
  for (int k = 0; item.number >= 0; ++k) {
    const __nv_bfloat16* query =
        call.query + ((size_t)item.query * call.heads + item.number / call.most_chunks % groups * 64) * DIM;
    uint32_t held[64];
    hold_query(query, held, r, lane);
    named_barrier_sync(1, 128);  // all have multiplied by the query before
    bring_query<128, 4>(query, shared + Shared::QUERY, thread);
    fence_proxy_async();
    named_barrier_sync(1, 128);
    float m0 = 0.f, m1 = 0.f, l0 = 0.f, l1 = 0.f;
    for (int n = 0; n < item.blocks; ++n, ++all) {
      const int stage = all & 1;
      float s[32], f0, f1, t0, t1;
      uint64_t q = operand(shared + Shared::QUERY, 16, 1024);
      uint64_t keys = operand(shared + Shared::KEYS + stage * Shared::STAGE, 16, 1024);
      asm volatile("" : "+l"(q), "+l"(keys));  // opaque: or the compiler keeps all descriptors live and spills
      mbarrier_wait(shared + Shared::FULL + 8 * stage, (all >> 1) & 1);
      fence_proxy_async();
      wgmma_hold(s);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 16; ++i) mma_n64_held(s, held + 4 * i, keys + (i >> 2) * (TILE >> 4) + (i & 3) * 2, i);
#pragma unroll
      for (int i = 0; i < 16; ++i)
        mma_n64(s, q + (i >> 2) * (TILE >> 4) + (i & 3) * 2, keys + (4 + (i >> 2)) * (TILE >> 4) + (i & 3) * 2, 1);
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_hold(s);
      hide_unseen(s, (const int*)(memory + Shared::UNSEEN) + stage * BLOCK, lane);
      float top0, top1;
      maxima_of(s, top0, top1);
      advance(call, n, top0, m0, m0, f0);
      advance(call, n, top1, m1, m1, f1);
      weigh(s, m0, m1, call.scale, t0, t1);
      l0 = __fmaf_rn(l0, f0, t0);
      l1 = __fmaf_rn(l1, f1, t1);
      if (all >= 2) mbarrier_wait(shared + Shared::EMPTY + 8 * stage, (all / 2 - 1) & 1);
      store_weights(s, shared + Shared::WEIGHTS + stage * TILE, r, lane);
      if ((lane & 3) == 0) {
        float* factors = (float*)(memory + Shared::FACTOR) + stage * 64;
        factors[r] = f0, factors[r + 8] = f1;
        if (n == item.blocks - 1) {
          float* ends = (float*)(memory + Shared::END) + (k & 1) * 128;
          ends[r] = m0, ends[r + 8] = m1, ends[64 + r] = l0, ends[72 + r] = l1;
        }
      }
      if (n == 0 && thread == 0) *item_at(memory, k) = item;
      fence_proxy_async();
      __syncwarp();
      if (lane == 0) mbarrier_arrive(shared + Shared::READY + 8 * stage);
    }
    item = next_item(call, item.number + gridDim.x, total, row);
    if (item.number < 0) {
      if (all >= 2) mbarrier_wait(shared + Shared::EMPTY + 8 * (all & 1), (all / 2 - 1) & 1);
      if (thread == 0) *item_at(memory, k + 1) = item;
      __syncwarp();
      if (lane == 0) mbarrier_arrive(shared + Shared::READY + 8 * (all & 1));
    }
  }
}

// A summing warpgroup: half SIDE of the columns of every block.
template <int SIDE>
__device__ __forceinline__ void sum_items(const Call& call, uint8_t* memory, uint32_t shared) {
  const int lane = threadIdx.x & 31, r = ((threadIdx.x & 127) >> 5) * 16 + (lane >> 2);
  int all = 0;
  for (int k = 0;; ++k) {
    mbarrier_wait(shared + Shared::READY + 8 * (all & 1), (all >> 1) & 1);
    const Item* item = item_at(memory, k);
    if (item->number < 0) return;
    float o[128];
    Ends ends;
#pragma unroll
    for (int i = 0; i < 128; ++i) o[i] = 0.f;
    for (int left = item->blocks; left > 0; --left, ++all) {
      const int stage = all & 1;
      mbarrier_wait(shared + Shared::READY + 8 * stage, (all >> 1) & 1);
      fence_proxy_async();
      rescale(o, (const float*)(memory + Shared::FACTOR) + stage * 64, r);
      issue_values(o, shared + Shared::WEIGHTS + stage * TILE,
                   shared + Shared::KEYS + stage * Shared::STAGE + SIDE * 4 * TILE);
      wgmma_wait<0>();
      wgmma_hold(o);
      if (left == 1) {
        const float* found = (const float*)(memory + Shared::END) + (k & 1) * 128 + r;
        ends = {found[0], found[8], found[64], found[72]};
      }
      if (lane == 0) mbarrier_arrive(shared + Shared::EMPTY + 8 * stage);
    }
    write(call, *item, o, SIDE * 256, ends);
  }
}

// A program takes items blockIdx.x, blockIdx.x + gridDim.x, ...
__global__ void __launch_bounds__(512, 1) attend(const __grid_constant__ Call call, int total) {
  uint8_t* memory = shared_start();
  const uint32_t shared = shared_address(memory);
  prefetch_picks(call, blockIdx.x / call.most_chunks / (call.heads / 64));
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(shared + Shared::FULL + 8 * i, 4);
      mbarrier_init(shared + Shared::EMPTY + 8 * i, 8);
      mbarrier_init(shared + Shared::READY + 8 * i, 4);
    }
    for (int i = 0; i < 8; ++i) mbarrier_init(shared + Shared::RAW_FULL + 8 * i, 1);
    fence_barrier_init();
  }
  Row row;
  const Item item = next_item(call, blockIdx.x, total, row);
  if (item.number < 0) return;
  __syncthreads();
  const int role = threadIdx.x >> 7;
  if (role == 3) {
    give_registers<64>();
    bring_items(call, row, item, total, memory, shared);
  } else if (role == 0) {
    score_items(call, row, item, total, memory, shared);
  } else {
    take_registers<160>();
    if (role == 1) sum_items<0>(call, memory, shared);
    else sum_items<1>(call, memory, shared);
  }
}

// --- scores, then values -------------------------------------------------------------------------------------------

// Issues the scores of a block, whose keys may still be arriving part by part.
__device__ __forceinline__ void issue_scores(float (&s)[32], int stage, int parity, uint32_t shared) {
  using S = SharedScores;
  uint64_t q = operand(shared + S::QUERY, 16, 1024), k = operand(shared + S::KEYS + stage * S::STAGE, 16, 1024);
  asm volatile("" : "+l"(q), "+l"(k));  // opaque: or the compiler keeps all descriptors live across blocks and spills
  wgmma_hold(s);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i % (8 / S::PARTS) == 0) {
      mbarrier_wait(shared + S::FULL + 8 * (stage * S::PARTS + i / (8 / S::PARTS)), parity);
      fence_proxy_async();
      wgmma_fence();
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) mma_n64(s, q + i * (TILE >> 4) + j * 2, k + i * (TILE >> 4) + j * 2, i + j);
  }
  wgmma_commit();
}

// Raw scores, in a thread's own order, and maxima of `each` blocks of a row. grid (runs of blocks, units)
__global__ void __launch_bounds__(512, 1) scores(const __grid_constant__ Call call, int each) {
  using S = SharedScores;
  uint8_t* memory = shared_start();
  const uint32_t shared = shared_address(memory);
  const int groups = call.heads / 64, number = blockIdx.y, head = number % groups * 64, first = blockIdx.x * each;
  grid_dependency_launch();
  prefetch_picks(call, number / groups);
  const Row row = find_row(call, number / groups);
  const int num_blocks = min(row.blocks - first, each);
  if (num_blocks <= 0) return;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * S::PARTS; ++i) mbarrier_init(shared + S::FULL + 8 * i, 8);
    for (int i = 0; i < 2; ++i) mbarrier_init(shared + S::EMPTY + 8 * i, 4);
    fence_barrier_init();
  }
  int* slots = (int*)(memory + S::SLOTS);
  find_slots(call, row, first, num_blocks, slots, threadIdx.x, 512);
  __syncthreads();
  if (threadIdx.x >= 256) return bring_keys(call, num_blocks, slots, shared);
  bring_query<256, 0>(call.query + ((size_t)row.query * call.heads + head) * DIM, shared + S::QUERY, threadIdx.x);
  fence_proxy_async();
  named_barrier_sync(1, 256);
  const int side = threadIdx.x >> 7, thread = threadIdx.x & 127, lane = thread & 31;
  const int r = (thread >> 5) * 16 + (lane >> 2);
  float s[32];
  for (int n = side; n < num_blocks; n += 2) {
    issue_scores(s, side, (n >> 1) & 1, shared);
    wgmma_wait<0>();
    wgmma_hold(s);
    if (lane == 0) mbarrier_arrive(shared + S::EMPTY + 8 * side);
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
  const int slices = DIM / WIDTH, slice = blockIdx.x % slices, unit = blockIdx.y, chunk = blockIdx.x / slices;
  prefetch_picks(call, unit / (call.heads / 64));
  const Row row = find_row(call, unit / (call.heads / 64));
  if (chunk >= row.chunks) return;
  const int first = chunk * CHUNK, num_blocks = min(row.blocks - first, CHUNK);
  const uint32_t full = shared + S::FULL, empty = shared + S::EMPTY, ready = shared + S::READY, free = shared + S::FREE;
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::STAGES; ++i) mbarrier_init(full + 8 * i, 8), mbarrier_init(empty + 8 * i, 8);
    for (int i = 0; i < S::WAITING; ++i) mbarrier_init(ready + 8 * i, 4), mbarrier_init(free + 8 * i, 8);
    fence_barrier_init();
  }
  int* slots = (int*)(memory + S::SLOTS);
  find_slots(call, row, first, num_blocks, slots, threadIdx.x, 896);
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
    const size_t item = (size_t)unit * call.most_blocks + first;
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
    fence_proxy_async();
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
  const float* reference = references + (num_blocks - 1) * 64;
  const Item item = {unit * call.most_chunks + chunk, row.query, num_blocks, row.chunks};
  write(call, item, o, slice * WIDTH + side * (WIDTH / 2), {reference[r], reference[r + 8], last[r], last[r + 8]});
}

// --- fold ----------------------------------------------------------------------------------------------------------

// Chunks of a row in ascending order. grid (units, 16), 256 threads: 32 columns a program.
__global__ void __launch_bounds__(256) fold(const __grid_constant__ Call call) {
  const int thread = threadIdx.x & 127, lane = thread & 31, r = (thread >> 5) * 16 + (lane >> 2);
  const int groups = call.heads / 64, number = blockIdx.x, head = number % groups * 64;
  const Row row = find_row(call, number / groups);
  if (row.chunks <= 1) return;
  grid_dependency_wait();
  const size_t item = (size_t)number * call.most_chunks;
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
    finish(call, row.query, (const float*)&total[j], i0, i1, column, lane, a, b);
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
  memcpy(&call.first, sizes, 14 * sizeof(int));
  call.scale = scale * LOG2_E, call.tolerance = 8.f / call.scale, call.most_chunks = (call.most_blocks + CHUNK - 1) / CHUNK;
  int device, programs;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&programs, cudaDevAttrMultiProcessorCount, device);
  const int units = sizes[14] * (call.heads / 64), chunks = call.most_chunks;
  const cudaStream_t on = (cudaStream_t)stream;
  int error;
  if (each == 0) {
    error = launch(attend, dim3(min(units * chunks, programs)), 512, Shared::BYTES, false, on, call, units * chunks);
  } else {
    error = launch(scores, dim3((call.most_blocks + each - 1) / each, units), 512, SharedScores::BYTES, false, on, call, each);
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
