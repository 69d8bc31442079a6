// Schedule for long runs of a sequence, whose rows read the same keys: those are widened once, to rows of fp16 in a
// workspace, and copied from there to the stages of `attend`'s roles. Bits are those of `attend`: so are the values.
//
// The workspace: for each tile the WIDE_WINDOW positions up to the end of its aligned block, then for each run of tiles
// of one sequence `run_entries` entries. Rows that no query sees are neither written nor read.
#pragma once
#include "whole.cuh"

namespace attention {

constexpr int WIDE_WINDOW = 3 * BLOCK, WIDE_ROW = DIM * 2;

__device__ __forceinline__ int window_start(int position) { return position / BLOCK * BLOCK - 2 * BLOCK; }
__device__ __forceinline__ int num_tiles(const Call& call) { return call.num_places / call.per_tile; }

// The run of each of 32 tiles `first` .., one a lane; `before` counts runs that began in earlier ones, but for the first.
__device__ __forceinline__ int run_of(const Call& call, int tile, int lane, int& before) {
  const bool begins = tile > 0 && tile < num_tiles(call) && call.sequence[tile] != call.sequence[tile - 1];
  const uint32_t all = __ballot_sync(~0u, begins);
  const int run = before + __popc(all & (~0u >> (31 - lane)));
  before += __popc(all);
  return run;
}

// Widens 64 keys: programs take the blocks of every tile's window, then those of every run's entries.
__global__ void __launch_bounds__(128) widen_keys(const __grid_constant__ Call call) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, tiles = num_tiles(call);
  const bool is_window = blockIdx.x < tiles * 3;
  Row row = {};
  int first, least = 0, most = -1;  // keys from `first`, of which [least, most] are seen
  size_t target;
  if (is_window) {
    const int tile = blockIdx.x / 3, part = blockIdx.x % 3, used = (int)call.used[tile];
    const long long* positions = call.positions + tile * call.per_tile;
    row.sequence = call.sequence[tile];
    first = window_start((int)positions[0]) + part * BLOCK;
    least = max((int)positions[0] - call.window + 1, 0);
    if (used > 0) most = (int)positions[used - 1];
    target = (size_t)blockIdx.x * BLOCK;
    if (part == 0 && warp == 0) {
      int before = 0, run = 0;
      for (int i = 0; i <= tile; i += 32) {
        const int found = run_of(call, i + lane, lane, before);
        if (i + lane == tile) run = found;
      }
      if (lane == tile % 32) call.runs[tile] = run;
    }
  } else {
    const int blocks = (call.run_entries + BLOCK - 1) / BLOCK, number = blockIdx.x - tiles * 3, run = number / blocks;
    int before = 0, last = -1, sequence = 0;
    for (int i = 0; i < tiles; i += 32) {
      const int tile = i + lane;
      if (run_of(call, tile, lane, before) != run || tile >= tiles) continue;
      sequence = (int)call.sequence[tile];
      if (call.used[tile] > 0) last = max(last, (int)call.positions[tile * call.per_tile + call.used[tile] - 1]);
    }
    row.sequence = __reduce_max_sync(~0u, sequence);
    row.visible = (__reduce_max_sync(~0u, last) + 1) / call.ratio;
    first = number % blocks * BLOCK, most = row.visible - 1;
    target = (size_t)tiles * WIDE_WINDOW + (size_t)run * call.run_entries + first;
  }
  const int key = first + warp * 16 + (lane & 15);
  const int slot = find_place(call, row, is_window, key >= least && key <= most ? key : -1).slot();
  uint8_t* to = call.wide + (target + warp * 16) * WIDE_ROW + lane * 16;
#pragma unroll 4
  for (int i = 0; i < 16; ++i) {
    const int from = __shfl_sync(~0u, slot, i);
    if (from < 0) continue;
    const uint8_t* raw = call.keys + (size_t)from * call.row_bytes;
    const uint2 scales = load_8(raw + CODES), low = load_8(raw + lane * 8);
    const bool is_rotary = lane >= 24;
    const uint8_t* upper = raw + (is_rotary ? CODES + 8 + (lane - 24) * 16 : 256 + lane * 8);
    const uint2 high = load_8(upper), more = load_8(is_rotary ? upper + 8 : upper);
    const int group = lane >> 3;
    *(uint4*)(to + i * WIDE_ROW) = widen(low.x, low.y, scale_pair(scales, group));
    *(uint4*)(to + i * WIDE_ROW + WIDE_ROW / 2) =
        is_rotary ? halves_of(make_uint4(high.x, high.y, more.x, more.y))
                  : widen(high.x, high.y, scale_pair(make_uint2(scales.y, 0), group));
  }
}

// `attend_widened`: a quarter of the query, three stages of keys, weights of two blocks, tables.
struct SharedWidened {
  // Side by side, scores and values share the tensor cores and end late; in turns, values run while scores are weighed.
  static constexpr bool IS_WIDENED = true, IN_TURNS = true;
  static constexpr int STAGES = 3, WEIGHT_STAGES = 2, NUM_ITEMS = 8, HELD = 24, STAGE = 8 * TILE;
  static constexpr int QUERY = 0, KEYS = (8 - HELD / 4) * TILE, WEIGHTS = KEYS + STAGES * STAGE,
                       UNSEEN = WEIGHTS + WEIGHT_STAGES * TILE, FACTOR = UNSEEN + STAGES * 256,
                       END = FACTOR + WEIGHT_STAGES * 256, ITEMS = END + WEIGHT_STAGES * 512, FULL = ITEMS + 128,
                       EMPTY = FULL + 24, READY = EMPTY + 24, BYTES = READY + 16;
};

// A bringing warp's part: rows 16 * warp .. of every block of this program's items. It tells the others of an item
// with the item's first block.
__device__ __forceinline__ void gather_items(const Call& call, Row row, Item item, int total, uint8_t* memory,
                                             uint32_t shared) {
  using S = SharedWidened;
  const int thread = threadIdx.x & 127, warp = thread >> 5, lane = thread & 31, groups = call.heads / 64;
  const int quarter = lane >> 3, chunk = lane & 7;  // eight lanes bring a row, a line of a tile at a time
  const uint32_t to = shared + S::KEYS + (warp * 16 + quarter) * 128 + ((chunk ^ quarter) << 4);
  int all = 0, k = 0;
  for (;; ++k) {
    const int block = item.number % call.most_chunks * CHUNK, tile = row.place / call.per_tile;
    const int entries = num_tiles(call) * WIDE_WINDOW + __ldg(call.runs + tile) * call.run_entries;
    const int window = tile * WIDE_WINDOW - window_start(row.position);
    int found = find_key(call, row, block * BLOCK + warp * 16 + (lane & 15));
    for (int n = 0; n < item.blocks; ++n, ++all) {
      const int stage = all % S::STAGES;
      const bool is_window = block + n < WINDOW_PLACES / BLOCK;
      const bool is_seen = found >= 0 && (is_window || found < row.visible);
      const int slot = is_seen ? found + (is_window ? window : entries) : -1;
      if (n + 1 < item.blocks) found = find_key(call, row, (block + n + 1) * BLOCK + warp * 16 + (lane & 15));
      wait_released<S>(shared, all - S::STAGES);
      if (n == 0 && thread == 0) *item_at<S>(memory, k) = item;
      if (lane < 16) store_4(shared + S::UNSEEN + stage * 256 + (warp * 16 + lane) * 4, is_seen ? 0 : ~0u);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int mine = __shfl_sync(~0u, slot, i * 4 + quarter);
        const uint8_t* from = call.wide + (size_t)max(mine, 0) * WIDE_ROW + chunk * 16;
        const uint32_t line = (to ^ ((i & 1) << 6)) + stage * S::STAGE + i * 512;
#pragma unroll
        for (int j = 0; j < 8; ++j) copy_16(line + j * TILE, from + j * 128, mine >= 0 ? 16 : 0);
      }
      arrive_when_copied(shared + S::FULL + 8 * stage);
      __syncwarp();
      if (lane == 0) mbarrier_arrive(shared + S::FULL + 8 * stage);
    }
    item = next_item(call, item.number + gridDim.x, total, row);
    if (item.number < 0) break;
    const uint8_t* query =
        (const uint8_t*)call.query +
        ((size_t)item.query * call.heads + item.number / call.most_chunks % groups * 64) * DIM * 2 + thread * 128;
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("prefetch.global.L2 [%0];" ::"l"(query + i * 128 * 128));
  }
  const int stage = all % S::STAGES;
  wait_released<S>(shared, all - S::STAGES);
  if (thread == 0) item_at<S>(memory, k + 1)->number = -1;
  arrive_when_copied(shared + S::FULL + 8 * stage);
  __syncwarp();
  if (lane == 0) mbarrier_arrive(shared + S::FULL + 8 * stage);
}

// `attend` with keys that `widen_keys` left.
__global__ void __launch_bounds__(512, 1) attend_widened(const __grid_constant__ Call call, int total) {
  using S = SharedWidened;
  uint8_t* memory = shared_start();
  const uint32_t shared = shared_address(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::STAGES; ++i) {
      mbarrier_init(shared + S::FULL + 8 * i, 128 + 4);
      mbarrier_init(shared + S::EMPTY + 8 * i, 8);
    }
    for (int i = 0; i < 2; ++i) mbarrier_init(shared + S::READY + 8 * i, 4);
    fence_barrier_init();
  }
  Row row;
  const Item item = next_item(call, blockIdx.x, total, row);
  if (item.number < 0) return;
  __syncthreads();
  const int role = threadIdx.x >> 7;
  if (role == 3) {
    give_registers<32>();
    gather_items(call, row, item, total, memory, shared);
  } else if (role == 0) {
    take_registers<160>();
    score_items<S>(call, item, total, memory, shared);
  } else {
    take_registers<160>();
    if (role == 1) sum_items<S, 0>(call, memory, shared);
    else sum_items<S, 1>(call, memory, shared);
  }
}

}  // namespace attention
