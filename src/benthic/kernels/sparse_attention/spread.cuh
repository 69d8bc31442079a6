// Schedule for few rows: blocks of a row spread over programs write raw scores; slices of columns then run the chain.
#pragma once
#include "whole.cuh"

namespace attention {

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

// By `threads` threads of which this is number `thread`.
__device__ __forceinline__ void find_slots(const Call& call, const Row& row, int first, int num_blocks, int* slots,
                                           int thread, int threads) {
  for (int i = thread; i < num_blocks * BLOCK; i += threads) {
    const int place = first * BLOCK + i;
    slots[i] = find_place(call, row, place < WINDOW_PLACES, find_key(call, row, place)).slot();
  }
}

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
    for (int j = 0; j < 8; ++j)
      target[j * 128 + thread] = make_float4(s[4 * j], s[4 * j + 1], s[4 * j + 2], s[4 * j + 3]);
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

}  // namespace attention
