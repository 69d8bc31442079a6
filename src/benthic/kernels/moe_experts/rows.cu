// What stands around the products of experts.cu: rows gathered into their blocked form, and outputs added in order.
#include <cuda_bf16.h>

#include "hopper.cuh"

using namespace hopper;

namespace moe_rows {

constexpr int kThreads = 256;

// One block a group of 8 padded rows: FP8 rows [R][size] with scales [R][size / 128] to the blocked form of experts.cu.
// Padded rows between an expert's last row and the next multiple of 8 become zeros; those of no expert stay untouched.
__global__ void __launch_bounds__(kThreads)
gather_rows(const uint8_t* data, const float* scale, const int* offsets, const int* order, uint8_t* blocked, int experts,
            int top_k, int size, int group_rows) {
  // In this order: what comes after may read the routing before this kernel has ended.
  grid_dependency_wait();
  grid_dependency_launch();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  // The expert is the last one whose padded rows, which start at 8 * ((offset + 7 e) / 8), do not start behind this block.
  int owner = -1;
  for (int expert = lane; expert < experts; expert += 32)
    owner += (__ldcg(offsets + expert) + 7 * expert) / 8 <= (int)blockIdx.x;
  owner = __reduce_add_sync(~0u, owner) + 31;
  const int offset = __ldcg(offsets + owner), num_rows = __ldcg(offsets + owner + 1) - offset;
  const int first = (offset + 7 * owner) / 8 * 8, start = 8 * blockIdx.x - first;
  if (start >= num_rows) return;
  const int group = start / group_rows, group_start = group * group_rows;
  const int rows = (min(num_rows - group_start, group_rows) + 7) / 8 * 8, row = start - group_start;
  uint8_t* target = blocked + (size_t)(first + group_start) * (size + size / 32);

  // A warp moves a run of 128 values of 4 rows at once.
  const int mine = start + (lane & 7);
  const int pick = mine < num_rows ? __ldcg(order + offset + mine) / top_k : -1;
  const int half = warp & 1, own = 4 * half + (lane >> 3), chunk = lane & 7;
  const int source = __shfl_sync(~0u, pick, own);
  const uint8_t* values = data + (size_t)source * size;
#pragma unroll 4
  for (int run = warp / 2; run < size / 128; run += kThreads / 64) {
    const uint4 value = source < 0 ? make_uint4(0, 0, 0, 0) : __ldg((const uint4*)values + run * 8 + chunk);
    const size_t stage = (size_t)(run / 2) * rows * 264;
    *(uint4*)(target + stage + (run % 2 * rows + row + own) * 128 + (chunk ^ own) * 16) = value;
  }
  for (int i = threadIdx.x; i < size / 16; i += kThreads) {
    const int run = i / 8, of = start + i % 8;
    const float value = of < num_rows ? scale[(size_t)(__ldcg(order + offset + of) / top_k) * (size / 128) + run] : 0.f;
    *(float*)(target + (size_t)(run / 2) * rows * 264 + rows * 256 + (run % 2 * rows + row + i % 8) * 4) = value;
  }
}

__device__ __forceinline__ void add8(float (&total)[8], uint4 values) {
  const __nv_bfloat162* pairs = (const __nv_bfloat162*)&values;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __bfloat1622float2(pairs[i]);
    total[2 * i] += pair.x, total[2 * i + 1] += pair.y;
  }
}

// result[r] = ((outputs[r][0] + outputs[r][1]) + ...) + shared[r], float32, rounded once; a thread has 8 columns. A row
// whose slots are -1 is not live: nothing was written for it.
template <typename Shared, typename Result>
__global__ void __launch_bounds__(kThreads)
sum_picks(const __nv_bfloat16* outputs, const int* slots, const Shared* shared, Result* result, int top_k, int size) {
  grid_dependency_wait();
  grid_dependency_launch();
  const int column = 8 * (blockIdx.x * kThreads + threadIdx.x), row = blockIdx.y;
  if (column >= size) return;
  float total[8] = {};
  if (slots[row * top_k] >= 0) {
    const uint4* terms = (const uint4*)(outputs + (size_t)row * top_k * size + column);
#pragma unroll 8
    for (int k = 0; k < top_k; ++k) add8(total, terms[(size_t)k * (size / 8)]);
  }
  if (shared != nullptr) {
    const Shared* own = shared + (size_t)row * size + column;
    if constexpr (sizeof(Shared) == 2) {
      add8(total, *(const uint4*)own);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) total[i] += own[i];
    }
  }
  Result* to = result + (size_t)row * size + column;
  if constexpr (sizeof(Result) == 2) {
    uint4 packed;
    __nv_bfloat162* pairs = (__nv_bfloat162*)&packed;
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(total[2 * i], total[2 * i + 1]);
    *(uint4*)to = packed;
  } else {
    *(float4*)to = make_float4(total[0], total[1], total[2], total[3]);
    *(float4*)(to + 4) = make_float4(total[4], total[5], total[6], total[7]);
  }
}

template <typename Shared, typename Result>
cudaError_t launch_sum(const void* outputs, const void* slots, const void* shared, void* result, int rows, int top_k, int size,
                       void* stream) {
  const dim3 grid((size / 8 + kThreads - 1) / kThreads, rows);
  return launch_early(sum_picks<Shared, Result>, grid, dim3(kThreads), 0, (cudaStream_t)stream,
                      (const __nv_bfloat16*)outputs, (const int*)slots, (const Shared*)shared, (Result*)result, top_k, size);
}

}  // namespace moe_rows

using namespace moe_rows;

// `group_rows` as for the products; `padded_rows` is the most rows that the blocked form can take, a multiple of 8.
extern "C" int experts_gather(const void* data, const void* scale, const void* offsets, const void* order, void* blocked,
                              int padded_rows, int experts, int top_k, int size, int group_rows, void* stream) {
  return launch_early(gather_rows, dim3(padded_rows / 8), dim3(kThreads), 0, (cudaStream_t)stream, (const uint8_t*)data,
                      (const float*)scale, (const int*)offsets, (const int*)order, (uint8_t*)blocked, experts, top_k, size,
                      group_rows);
}

extern "C" int experts_sum(const void* outputs, const void* slots, const void* shared, int shared_is_bfloat16, void* result,
                           int result_is_bfloat16, int rows, int top_k, int size, void* stream) {
  if (shared_is_bfloat16)
    return result_is_bfloat16
               ? launch_sum<__nv_bfloat16, __nv_bfloat16>(outputs, slots, shared, result, rows, top_k, size, stream)
               : launch_sum<__nv_bfloat16, float>(outputs, slots, shared, result, rows, top_k, size, stream);
  return result_is_bfloat16 ? launch_sum<float, __nv_bfloat16>(outputs, slots, shared, result, rows, top_k, size, stream)
                            : launch_sum<float, float>(outputs, slots, shared, result, rows, top_k, size, stream);
}
