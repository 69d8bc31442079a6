// What a row attends to: the call, its rows and their lists, and where in memory a listed key lies.
#pragma once
#include <cuda_bf16.h>

#include "hopper.cuh"

namespace attention {

using namespace hopper;

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
  uint8_t* wide;  // rows of `widen_keys`
  int* runs;      // of each tile: its number among runs of tiles of one sequence
  int first, heads, per_tile, num_picks, most_blocks, window_pages, window_page, window, entry_pages, entry_page,
      entry_base, ratio, row_bytes, num_places, run_entries;
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

// Where the pick of a place of a row's list stands; null where `find_key` needs none.
__device__ __forceinline__ const int* find_pick(const Call& call, const Row& row, int place) {
  const int entry = place - WINDOW_PLACES;
  if (call.picks == nullptr || entry < 0 || entry >= row.listed) return nullptr;
  return call.picks + (size_t)row.place * call.num_picks + entry;
}
// What a place of a row's list names: a position in its window, else an entry; -1 for nothing. A pick may name an
// entry that the row does not see.
__device__ __forceinline__ int find_key(const Call& call, const Row& row, int place) {
  if (place < WINDOW_PLACES) {
    const int position = row.position - (WINDOW_PLACES - 1) + place;
    return position > row.position - call.window ? max(position, -1) : -1;
  }
  const int* pick = find_pick(call, row, place);
  if (pick != nullptr) return __ldg(pick);
  return place - WINDOW_PLACES < row.listed ? place - WINDOW_PLACES : -1;
}
// Where a key lies: slot `start + *page * page_size`, nowhere if `start` is below 0. `page`: the low half of an int64.
struct Address {
  const int* page;
  int page_size, start;
};
__device__ __forceinline__ Address find_address(const Call& call, const Row& row, bool is_window, int key) {
  if (key < 0 || (!is_window && key >= row.visible)) return {nullptr, 0, -1};
  const int page_size = is_window ? call.window_page : call.entry_page, page = (unsigned)key / (unsigned)page_size;
  const long long* table = is_window ? call.window_table + row.sequence * call.window_pages
                                     : call.entry_table + row.sequence * call.entry_pages;
  const int start = (is_window ? 0 : call.entry_base) + key - page * page_size;
  return {(const int*)(table + page), page_size, start};
}
// The same once its page is requested. Nothing here waits for it.
struct Place {
  int page, page_size, start;
  __device__ __forceinline__ int slot() const { return start < 0 ? -1 : start + page * page_size; }
};
__device__ __forceinline__ Place find_place(const Call& call, const Row& row, bool is_window, int key) {
  const Address address = find_address(call, row, is_window, key);
  if (address.start < 0) return {0, 0, -1};
  return {__ldg(address.page), address.page_size, address.start};
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

}  // namespace attention
