// Exact top-k of rows of float32 scores by counting digits, for rows that one block or a cluster of blocks holds.
//
// A row is cut into one slice a block of its cluster. Slices stay in shared memory as unsigned keys in the order of the
// scores; three counts of 11, 11 and 10 bits, summed over the cluster, find the k-th largest key. Marks of what is
// above it and of what equals it then lie in bits, in order of index: prefix sums over them write the picks ascending,
// and give ties to the lowest indices. Counts are integers, so no order of arrival is in the result.
#include <cooperative_groups.h>
#include <cuda_runtime.h>
#include <cstdint>

namespace cg = cooperative_groups;

namespace select_rows_of_scores {

constexpr int BINS = 2048;
constexpr int MAX_CLUSTER = 16;
constexpr uint32_t HIDDEN = 0x007FFFFFu;  // the key of -inf: never picked

struct Rows {
  const float* scores;       // [rows, width]
  const int64_t* positions;  // [rows], or null where whole rows are visible
  const int64_t* used;       // [rows / per_tile]
  int32_t* picks;            // [rows, room]
  int width, room, k, per_tile, ratio, slice_limit, in_shared;
};

struct Shared {
  uint32_t counts[BINS];
  uint32_t totals[BINS];
  uint32_t warp_sums[64];
  uint32_t above[MAX_CLUSTER], ties[MAX_CLUSTER];
  uint32_t digit, room, bin_count, all;
};

// Zeros are alike; denormals count.
__device__ __forceinline__ uint32_t key_of(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
}

__device__ int visible_of(const Rows& a, int row) {
  if (a.positions == nullptr) return a.width;
  if (row % a.per_tile >= a.used[row / a.per_tile]) return 0;
  return (int)min((int64_t)a.width, (a.positions[row] + 1) / a.ratio);
}

// Exclusive sums of a and b over the block's threads, in order; `sums` holds 64 words.
template <int THREADS>
__device__ __forceinline__ void exclusive_sums(uint32_t& a, uint32_t& b, uint32_t* sums) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  uint32_t x = a, y = b;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t dx = __shfl_up_sync(~0u, x, step), dy = __shfl_up_sync(~0u, y, step);
    if (lane >= step) x += dx, y += dy;
  }
  if (lane == 31) sums[warp] = x, sums[32 + warp] = y;
  __syncthreads();
  uint32_t p = lane < warp ? sums[lane] : 0, q = lane < warp ? sums[32 + lane] : 0;
  p = __reduce_add_sync(~0u, p), q = __reduce_add_sync(~0u, q);
  a = p + x - a, b = q + y - b;
  __syncthreads();
}

__device__ __forceinline__ void wait_for_all(bool is_cluster) {
  if (is_cluster) cg::this_cluster().sync();
  else __syncthreads();
}

// Calls f(index in the slice, key) for every element, four at a time where rows are aligned.
template <int THREADS, bool FROM_SHARED, typename F>
__device__ __forceinline__ void each_key(const Rows& a, const float* slice, uint32_t* keys, int count, F f) {
  if constexpr (FROM_SHARED) {
    for (int i = threadIdx.x * 4; i < count; i += THREADS * 4) {
      const uint4 v = *reinterpret_cast<const uint4*>(keys + i);  // keys past the slice are hidden ones
      f(v.x), f(v.y), f(v.z), f(v.w);
    }
  } else {
    const bool keep = a.in_shared;
    if (a.width % 4 == 0) {
#pragma unroll 4
      for (int i = threadIdx.x * 4; i < count; i += THREADS * 4) {
        const float4 v = __ldg(reinterpret_cast<const float4*>(slice + i));
        const int left = count - i;
        const uint4 key = make_uint4(key_of(v.x), left > 1 ? key_of(v.y) : HIDDEN, left > 2 ? key_of(v.z) : HIDDEN,
                                     left > 3 ? key_of(v.w) : HIDDEN);
        if (keep) *reinterpret_cast<uint4*>(keys + i) = key;
        f(key.x), f(key.y), f(key.z), f(key.w);
      }
    } else {
      for (int i = threadIdx.x; i < (count + 3) / 4 * 4; i += THREADS) {
        const uint32_t key = i < count ? key_of(__ldg(slice + i)) : HIDDEN;
        if (keep) keys[i] = key;
        f(key);
      }
    }
  }
}

// Sums the blocks' counts of `bins` digits into `totals` of every block.
template <int THREADS>
__device__ __forceinline__ void sum_counts(Shared& s, int bins, int rank, int size) {
  auto cluster = cg::this_cluster();
  cluster.sync();
  const int part = bins / size;
  for (int i = threadIdx.x; i < part; i += THREADS) {
    const int bin = rank * part + i;
    uint32_t sum = 0;
    for (int other = 0; other < size; ++other) sum += *cluster.map_shared_rank(&s.counts[bin], other);
    for (int other = 0; other < size; ++other) *cluster.map_shared_rank(&s.totals[bin], other) = sum;
  }
  cluster.sync();
}

// The digit that holds the `room`-th largest, how many are still wanted there, and how many there are.
template <int THREADS>
__device__ __forceinline__ void find_digit(Shared& s, const uint32_t* totals, int bins, uint32_t room) {
  const int each = max(1, bins / THREADS), first = bins - 1 - (int)threadIdx.x * each;
  uint32_t mine = 0, unused = 0;
  if (first >= 0)
    for (int i = 0; i < each; ++i) mine += totals[first - i];
  uint32_t before = mine;
  exclusive_sums<THREADS>(before, unused, s.warp_sums);
  if (threadIdx.x == THREADS - 1) s.all = before + mine;
  if (before < room && room <= before + mine) {
    int bin = first;
    while (before + totals[bin] < room) before += totals[bin--];
    s.digit = bin, s.room = room - before, s.bin_count = totals[bin];
  }
  __syncthreads();
}

// (threshold, ties wanted): picks are the keys above the threshold and the first ties at it.
template <int THREADS>
__device__ __forceinline__ uint2 find_threshold(const Rows& a, Shared& s, const float* slice, uint32_t* keys, int count,
                                                int rank, int size) {
  uint32_t prefix = 0, room = a.k;
  int rest = 32;
#pragma unroll
  for (int pass = 0; pass < 3; ++pass) {
    const int width = pass < 2 ? 11 : 10, bins = 1 << width, high = rest;
    rest -= width;
    for (int i = threadIdx.x; i < bins; i += THREADS) s.counts[i] = 0;
    __syncthreads();
    auto count_one = [&](uint32_t key) {
      const bool belongs = pass == 0 || (key >> (high & 31)) == prefix;
      if (key > HIDDEN && belongs) atomicAdd(&s.counts[(key >> rest) & (bins - 1)], 1u);
    };
    if (pass == 0 || !a.in_shared) each_key<THREADS, false>(a, slice, keys, count, count_one);
    else each_key<THREADS, true>(a, slice, keys, count, count_one);
    if (size > 1) sum_counts<THREADS>(s, bins, rank, size);
    else __syncthreads();
    find_digit<THREADS>(s, size > 1 ? s.totals : s.counts, bins, room);
    if (pass == 0 && s.all <= (uint32_t)a.k) return make_uint2(HIDDEN, 0);
    prefix = prefix << width | s.digit, room = s.room;
    if (s.bin_count == room) return make_uint2(max((prefix << rest) - 1, HIDDEN), 0);
  }
  return make_uint2(prefix, room);
}

template <int THREADS>
__global__ void __launch_bounds__(THREADS, 1) select_rows(const Rows a) {
  extern __shared__ __align__(16) uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  uint32_t* above = reinterpret_cast<uint32_t*>(memory + sizeof(Shared));
  uint32_t* equal = above + a.slice_limit / 32;
  uint32_t* keys = equal + a.slice_limit / 32;
  const int row = blockIdx.y, rank = blockIdx.x, size = gridDim.x, lane = threadIdx.x & 31;
  const int visible = visible_of(a, row);
  const int length = ((visible + size - 1) / size + 127) / 128 * 128;
  const int begin = min(rank * length, visible), count = min(begin + length, visible) - begin;
  const float* slice = a.scores + (int64_t)row * a.width + begin;

  const bool takes_all = visible <= a.k;
  if (takes_all) wait_for_all(size > 1);  // no block writes to another that has not begun
  const uint2 found = takes_all ? make_uint2(HIDDEN, 0) : find_threshold<THREADS>(a, s, slice, keys, count, rank, size);
  const uint32_t threshold = found.x, tie_room = found.y;

  // One bit an element.
  const bool is_kept = a.in_shared && !takes_all;
  const int words = (count + 31) / 32;
#pragma unroll 4
  for (int word = threadIdx.x >> 5; word < words; word += THREADS / 32) {
    const int i = word * 32 + lane;
    const uint32_t key = i >= count ? 0 : is_kept ? keys[i] : key_of(__ldg(slice + i));
    const uint32_t more = __ballot_sync(~0u, key > threshold), same = __ballot_sync(~0u, key == threshold);
    if (lane == 0) above[word] = more, equal[word] = tie_room ? same : 0;
  }
  __syncthreads();
  const int each = (words + THREADS - 1) / THREADS, first = threadIdx.x * each, end = min(first + each, words);
  uint32_t num_above = 0, num_equal = 0;
  for (int word = first; word < end; ++word) num_above += __popc(above[word]), num_equal += __popc(equal[word]);
  uint32_t place = num_above, tie = num_equal;
  exclusive_sums<THREADS>(place, tie, s.warp_sums);

  // What lies in the slices before this one, and in all of them.
  if (threadIdx.x == THREADS - 1) {
    const uint32_t mine = place + num_above, my_ties = tie + num_equal;
    if (size == 1) s.above[0] = mine, s.ties[0] = my_ties;
    for (int other = 0; other < size && size > 1; ++other) {
      *cg::this_cluster().map_shared_rank(&s.above[rank], other) = mine;
      *cg::this_cluster().map_shared_rank(&s.ties[rank], other) = my_ties;
    }
  }
  wait_for_all(size > 1);
  uint32_t base = 0, ties_before = 0, total = 0, total_ties = 0;
  for (int other = 0; other < size; ++other) {
    if (other == rank) base = total + min(total_ties, tie_room), ties_before = total_ties;
    total += s.above[other], total_ties += s.ties[other];
  }
  total += min(total_ties, tie_room);

  int32_t* target = a.picks + (int64_t)row * a.room;
  tie += ties_before;
  uint32_t next = base + place + (min(tie, tie_room) - min(ties_before, tie_room));
  for (int word = first; word < end; ++word) {
    uint32_t same = equal[word];
    const uint32_t wanted = tie < tie_room ? tie_room - tie : 0;
    tie += __popc(same);
    while (__popc(same) > wanted) same &= ~(0x80000000u >> __clz(same));
    for (uint32_t marks = above[word] | same; marks; marks &= marks - 1)
      target[next++] = begin + word * 32 + __ffs(marks) - 1;
  }
  for (int i = total + rank * THREADS + threadIdx.x; i < a.room; i += size * THREADS) target[i] = -1;
}

int shared_bytes(int slice, bool in_shared) { return sizeof(Shared) + slice / 4 + (in_shared ? slice * 4 : 0); }

template <int THREADS>
cudaError_t launch(const Rows& a, int rows, int cluster, int bytes, cudaStream_t stream) {
  const auto kernel = select_rows<THREADS>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  if (cluster > 8) cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(cluster, rows), config.blockDim = dim3(THREADS), config.dynamicSmemBytes = bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster, attribute.val.clusterDim.y = 1, attribute.val.clusterDim.z = 1;
  config.attrs = &attribute, config.numAttrs = cluster > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, a);
}

}  // namespace select_rows_of_scores

using namespace select_rows_of_scores;

// `positions` and `used` may be null: whole rows are visible. `room` = picks a row. Returns a cudaError_t.
extern "C" int select_topk(const float* scores, const int64_t* positions, const int64_t* used, int32_t* picks, int rows,
                           int width, int room, int k, int per_tile, int ratio, int cluster, int threads,
                           void* stream) {
  const int slice = ((width + cluster - 1) / cluster + 127) / 128 * 128;
  const bool in_shared = shared_bytes(slice, true) <= 227 * 1024;
  const Rows a{scores, positions, used, picks, width, room, k, per_tile, ratio, slice, in_shared};
  const int bytes = shared_bytes(slice, in_shared);
  // A grid has at most 65535 rows.
  for (int first = 0; first < rows; first += 65535 / per_tile * per_tile) {
    Rows some = a;
    const int step = 65535 / per_tile * per_tile;
    some.scores += (int64_t)first * width, some.picks += (int64_t)first * room;
    if (positions) some.positions += first, some.used += first / per_tile;
    const int count = rows - first < step ? rows - first : step;
    const auto on = (cudaStream_t)stream;
    const cudaError_t error = threads == 256   ? launch<256>(some, count, cluster, bytes, on)
                              : threads == 512 ? launch<512>(some, count, cluster, bytes, on)
                                               : launch<1024>(some, count, cluster, bytes, on);
    if (error != cudaSuccess) return error;
  }
  return cudaGetLastError();
}
