// Schedule for many rows: a program runs the whole chunk of a row.
// Warpgroups: 0 scores and weighs, 1 and 2 sum half of the columns each, 3 brings keys. None waits for more than its
// own input: raw rows come a block ahead by bulk copies, fp16 keys and weights have two stages each.
#pragma once
#include "results.cuh"

namespace attention {

// `attend`: half of the query, two stages of keys, weights of two blocks, raw rows on their way, tables.
struct Shared {
  static constexpr bool IS_WIDENED = false;  // keys, before this kernel
  static constexpr bool IN_TURNS = false;    // values of a block after the scores of the next, not beside them
  static constexpr int STAGES = 2, WEIGHT_STAGES = 2, NUM_ITEMS = 4;
  static constexpr int HELD = 16;  // steps of the query in registers
  static constexpr int STAGE = 8 * TILE, ROW = 592, BATCH = 8 * ROW;
  static constexpr int QUERY = 0, KEYS = 4 * TILE, WEIGHTS = KEYS + 2 * STAGE, RAW = WEIGHTS + 2 * TILE,
                       RAW_SEEN = RAW + 8 * BATCH, UNSEEN = RAW_SEEN + 256, FACTOR = UNSEEN + 512, END = FACTOR + 512,
                       ITEMS = END + 1024, ROWS = ITEMS + 64, FULL = ROWS + 256, EMPTY = FULL + 16, READY = EMPTY + 16,
                       RAW_FULL = READY + 16, PLACES = RAW_FULL + 64, BYTES = PLACES + 128 * 16 + 1024;
};

extern __shared__ __align__(1024) uint8_t shared_bytes[];
__device__ __forceinline__ uint8_t* shared_start() {
  return (uint8_t*)(((uintptr_t)shared_bytes + 1023) & ~(uintptr_t)1023);
}

// The first STEPS steps of a warpgroup's query as first operands in registers, from the same columns in the same order.
template <int STEPS>
__device__ __forceinline__ void hold_query(const __nv_bfloat16* query, uint32_t (&held)[4 * STEPS], int r, int lane) {
  constexpr int PART = STEPS / 2;
#pragma unroll
  for (int first = 0; first < STEPS; first += PART) {
    uint4 v[PART];
#pragma unroll
    for (int i = 0; i < PART; ++i)
      v[i] = load_16(query + (size_t)(r + (i & 1) * 8) * DIM + ((first + i) >> 1) * 32 + (lane & 3) * 8);
#pragma unroll
    for (int i = 0; i < PART; ++i) {
      const uint4 h = halves_of(v[i]);
      uint32_t line[4] = {bytes_of(h.x, h.y, 0x5410), bytes_of(h.x, h.y, 0x7632), bytes_of(h.z, h.w, 0x5410),
                          bytes_of(h.z, h.w, 0x7632)};
      const uint4 turned = gather_line(line, lane);  // word lane & 3 of every eight columns
      uint32_t* step = held + ((first + i) >> 1) * 8 + (i & 1);
      step[0] = turned.x, step[2] = turned.y, step[4] = turned.z, step[6] = turned.w;
    }
  }
}

// What the scoring warpgroup tells the summing ones of an item. number -1: there are no more.
template <class S>
__device__ __forceinline__ Item* item_at(uint8_t* memory, int k) {
  return (Item*)(memory + S::ITEMS) + (k & (S::NUM_ITEMS - 1));
}
// Until the stage that block `all` of a program had is free again.
template <class S>
__device__ __forceinline__ void wait_released(uint32_t shared, int all) {
  if (all >= 0) mbarrier_wait(shared + S::EMPTY + 8 * (all % S::STAGES), all / S::STAGES & 1);
}

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
// bulk copies, eight at a time; their pages are asked for a block earlier, what the list names one more.
__device__ __forceinline__ void bring_items(const Call& call, const Row& first_row, const Item& item, int total,
                                            uint8_t* memory, uint32_t shared) {
  const int warp = (threadIdx.x >> 5) & 3, lane = threadIdx.x & 31;
  const uint32_t raw = shared + Shared::RAW + warp * 2 * Shared::BATCH;
  const uint32_t raw_seen = shared + Shared::RAW_SEEN + warp * 64;
  const uint32_t raw_full = shared + Shared::RAW_FULL + warp * 16;
  // Where the list is read, two blocks ahead. The row lies in shared memory: there are no registers for it.
  Row* row = (Row*)(memory + Shared::ROWS) + warp;
  int number = item.number, block = number % call.most_chunks * CHUNK, end = block + item.blocks;
  auto keep = [&](const Row& found) {
    __syncwarp();
    if (lane == 0) *row = found;
    __syncwarp();
  };
  // This thread's key, its page, the page's size and start: in shared memory, since a value that is on its way to a
  // register is waited for wherever the register is moved or spilled.
  const uint32_t places = shared + Shared::PLACES + (threadIdx.x & 127) * 16;
  auto ask = [&] {
    const int place = block * BLOCK + warp * 16 + (lane & 15);
    const int* pick = find_pick(call, *row, place);
    if (pick != nullptr) copy_4(places, pick);
    else store_4(places, find_key(call, *row, place));
  };
  auto locate = [&] {
    copy_wait();
    const Address found = find_address(call, *row, block < WINDOW_PLACES / BLOCK, load_shared_4(places));
    store_8(places + 8, make_uint2(found.page_size, found.start));
    if (found.start >= 0) copy_4(places + 4, found.page);
  };
  auto slot_of = [&] {
    copy_wait();
    const uint2 at = load_shared_8(places + 8);
    return (int)at.y < 0 ? -1 : (int)(at.y + load_shared_4(places + 4) * at.x);
  };
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
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int from = __shfl_sync(~0u, slot, batch * 8 + i);
      bulk_load_elected(from >= 0, raw + (batch * 8 + i) * Shared::ROW,
                        call.keys + (size_t)(uint32_t)max(from, 0) * (uint32_t)call.row_bytes, Shared::ROW,
                        raw_full + batch * 8);
    }
  };
  ask();
  locate();
  bool has_next = step(), has_second = false;
  if (has_next) ask();
  const int slot = slot_of();
  request(0, slot), request(1, slot);
  if (has_next) {
    locate();
    has_second = step();
    if (has_second) ask();
  }
  for (int n = 0;; ++n) {  // raw rows are those of block n; of block n + 1 pages are asked for, of n + 2 what is listed
    const int stage = n & 1;
    if (n >= 2) mbarrier_wait(shared + Shared::EMPTY + 8 * stage, (n / 2 - 1) & 1);
#pragma unroll 1
    for (int batch = 0; batch < 2; ++batch) {
      const int first = warp * 16 + batch * 8;
      mbarrier_wait(raw_full + batch * 8, n & 1);
      widen_rows(raw + batch * Shared::BATCH, raw_seen + batch * 32, shared + Shared::UNSEEN + stage * 256 + first * 4,
                 shared + Shared::KEYS + stage * Shared::STAGE + first * 128, lane);
      __syncwarp();
      if (has_next) request(batch, slot_of());
    }
    if (lane == 0) mbarrier_arrive(shared + Shared::FULL + 8 * stage);
    if (!has_next) return;
    has_next = has_second;
    if (has_second) {
      locate();
      has_second = step();
      if (has_second) ask();
    }
  }
}

// A scoring warpgroup's chain of one item: references and sums of a thread's rows r and r + 8.
struct Chain {
  float m0, m1, l0, l1;
};
// Scores and weights of block n of an item, which is block `all` of the program.
template <class S>
__device__ __forceinline__ void score_block(const Call& call, const uint32_t (&held)[4 * S::HELD], Chain& chain, int n,
                                            int all, uint8_t* memory, uint32_t shared, int r, int lane) {
  const int stage = all % S::STAGES, turn = all % S::WEIGHT_STAGES;
  float s[32], f0, f1, t0, t1;
  uint64_t q = operand(shared + S::QUERY, 16, 1024);
  uint64_t keys = operand(shared + S::KEYS + stage * S::STAGE, 16, 1024);
  asm volatile("" : "+l"(q), "+l"(keys));  // opaque: or the compiler keeps all descriptors live and spills
  mbarrier_wait(shared + S::FULL + 8 * stage, all / S::STAGES & 1);
  fence_proxy_async();
  wgmma_hold(s);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < S::HELD; ++i)
    mma_n64_held(s, held + 4 * i, keys + (i >> 2) * (TILE >> 4) + (i & 3) * 2, i);
#pragma unroll
  for (int i = S::HELD; i < 32; ++i)
    mma_n64(s, q + ((i - S::HELD) >> 2) * (TILE >> 4) + (i & 3) * 2, keys + (i >> 2) * (TILE >> 4) + (i & 3) * 2, 1);
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_hold(s);
  if (S::IN_TURNS && n > 0 && lane == 0) mbarrier_arrive(shared + S::READY + 8 * ((all - 1) & 1));
  hide_unseen(s, (const int*)(memory + S::UNSEEN) + stage * BLOCK, lane);
  float top0, top1;
  maxima_of(s, top0, top1);
  advance(call, n, top0, chain.m0, chain.m0, f0);
  advance(call, n, top1, chain.m1, chain.m1, f1);
  weigh(s, chain.m0, chain.m1, call.scale, t0, t1);
  chain.l0 = __fmaf_rn(chain.l0, f0, t0);
  chain.l1 = __fmaf_rn(chain.l1, f1, t1);
  wait_released<S>(shared, all - S::WEIGHT_STAGES);
  store_weights(s, shared + S::WEIGHTS + turn * TILE, r, lane);
  if ((lane & 3) == 0) {
    float* factors = (float*)(memory + S::FACTOR) + turn * 64;
    factors[r] = f0, factors[r + 8] = f1;
  }
}

// The scoring warpgroup: a part of the query in registers, and a chain for each item.
template <class S>
__device__ __forceinline__ void score_items(const Call& call, Item item, int total, uint8_t* memory, uint32_t shared) {
  const int thread = threadIdx.x & 127, lane = thread & 31, r = (thread >> 5) * 16 + (lane >> 2);
  const int groups = call.heads / 64;
  int all = 0, k = 0;
  for (; item.number >= 0; ++k) {
    const __nv_bfloat16* query =
        call.query + ((size_t)item.query * call.heads + item.number / call.most_chunks % groups * 64) * DIM;
    uint32_t held[4 * S::HELD];
    hold_query<S::HELD>(query, held, r, lane);
    named_barrier_sync(1, 128);  // all have multiplied by the query before
    int same = thread;
    asm volatile("" : "+r"(same));  // opaque: or addresses of every line stay in registers from row to row
    bring_query<128, S::HELD / 4>(query, shared + S::QUERY, same);
    fence_proxy_async();
    named_barrier_sync(1, 128);
    Chain chain = {};
    for (int n = 0; n < item.blocks; ++n, ++all) {
      score_block<S>(call, held, chain, n, all, memory, shared, r, lane);
      if (n == item.blocks - 1 && (lane & 3) == 0) {
        float* ends = (float*)(memory + S::END) + k % S::WEIGHT_STAGES * 128;
        ends[r] = chain.m0, ends[r + 8] = chain.m1, ends[64 + r] = chain.l0, ends[72 + r] = chain.l1;
      }
      if (!S::IS_WIDENED && n == 0 && thread == 0) *item_at<S>(memory, k) = item;
      fence_proxy_async();
      __syncwarp();
      const bool is_later = S::IN_TURNS && n < item.blocks - 1;
      if (lane == 0 && !is_later) mbarrier_arrive(shared + S::READY + 8 * (all & 1));
    }
    if constexpr (S::IS_WIDENED) {
      mbarrier_wait(shared + S::FULL + 8 * (all % S::STAGES), all / S::STAGES & 1);
      item = *item_at<S>(memory, k + 1);
    } else {
      Row row;
      item = next_item(call, item.number + gridDim.x, total, row);
    }
  }
  wait_released<S>(shared, all - S::WEIGHT_STAGES);
  if (!S::IS_WIDENED && thread == 0) *item_at<S>(memory, k) = item;
  __syncwarp();
  if (lane == 0) mbarrier_arrive(shared + S::READY + 8 * (all & 1));
}

// A summing warpgroup: half SIDE of the columns of every block.
template <class S, int SIDE>
__device__ __forceinline__ void sum_items(const Call& call, uint8_t* memory, uint32_t shared) {
  const int lane = threadIdx.x & 31, r = ((threadIdx.x & 127) >> 5) * 16 + (lane >> 2);
  int all = 0;
  for (int k = 0;; ++k) {
    mbarrier_wait(shared + S::READY + 8 * (all & 1), (all >> 1) & 1);
    const Item* item = item_at<S>(memory, k);
    if (item->number < 0) return;
    float o[128];
    Ends ends;
#pragma unroll
    for (int i = 0; i < 128; ++i) o[i] = 0.f;
    for (int left = item->blocks; left > 0; --left, ++all) {
      const int stage = all % S::STAGES, turn = all % S::WEIGHT_STAGES;
      mbarrier_wait(shared + S::READY + 8 * (all & 1), (all >> 1) & 1);
      fence_proxy_async();
      rescale(o, (const float*)(memory + S::FACTOR) + turn * 64, r);
      issue_values(o, shared + S::WEIGHTS + turn * TILE, shared + S::KEYS + stage * S::STAGE + SIDE * 4 * TILE);
      wgmma_wait<0>();
      wgmma_hold(o);
      if (left == 1) {
        const float* found = (const float*)(memory + S::END) + k % S::WEIGHT_STAGES * 128 + r;
        ends = {found[0], found[8], found[64], found[72]};
      }
      if (lane == 0) mbarrier_arrive(shared + S::EMPTY + 8 * stage);
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
    score_items<Shared>(call, item, total, memory, shared);
  } else {
    take_registers<160>();
    if (role == 1) sum_items<Shared, 0>(call, memory, shared);
    else sum_items<Shared, 1>(call, memory, shared);
  }
}

}  // namespace attention
