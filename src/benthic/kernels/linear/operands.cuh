// What both sources of products of 16-bit rows and weights share: the instruction, and their operands in the copy
// engine's boxes.
#pragma once
#include <cuda_bf16.h>
#include "hopper.cuh"

namespace products {

constexpr int STEP = 64;  // inputs of a stage: 128 bytes a row, the width of the copy engine's swizzle

#define PRODUCT(N, A, B, P, REGS, ...) \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N \
               "k16.f32.bf16.bf16 {" REGS "}, %" #A ", %" #B ", p, 1, 1, 0, 0;\n}" \
               : __VA_ARGS__ : "l"(a), "l"(b), "r"(adds))
#define REGS_TO_64 REGS_0 ", " REGS_16 ", " REGS_32 ", " REGS_48

// d [64 outputs, N rows] (+)= a b^T, one step of 16 inputs.
template <int N> __device__ __forceinline__ void multiply(float (&d)[N / 2], uint64_t a, uint64_t b, int adds) {
  if constexpr (N == 16) PRODUCT(16, 8, 9, 10, "%0, %1, %2, %3, %4, %5, %6, %7", FLOATS_8(d, 0));
  if constexpr (N == 32) PRODUCT(32, 16, 17, 18, REGS_0, FLOATS_16(d, 0));
  if constexpr (N == 64) PRODUCT(64, 32, 33, 34, REGS_0 ", " REGS_16, FLOATS_16(d, 0), FLOATS_16(d, 16));
  if constexpr (N == 128) PRODUCT(128, 64, 65, 66, REGS_TO_64, FLOATS_64(d, 0));
  if constexpr (N == 160) PRODUCT(160, 80, 81, 82, REGS_TO_64 ", " REGS_64, FLOATS_64(d, 0), FLOATS_16(d, 64));
  if constexpr (N == 176)
    PRODUCT(176, 88, 89, 90, REGS_TO_64 ", " REGS_64 ", %80, %81, %82, %83, %84, %85, %86, %87",
            FLOATS_64(d, 0), FLOATS_16(d, 64), FLOATS_8(d, 80));
  if constexpr (N == 192)
    PRODUCT(192, 96, 97, 98, REGS_TO_64 ", " REGS_64 ", " REGS_80,
            FLOATS_64(d, 0), FLOATS_16(d, 64), FLOATS_16(d, 80));
  if constexpr (N == 256)
    PRODUCT(256, 128, 129, 130, REGS_TO_64 ", " REGS_64 ", " REGS_80 ", " REGS_96 ", " REGS_112,
            FLOATS_64(d, 0), FLOATS_64(d, 64));
}

__device__ __forceinline__ void load_box(uint32_t target, const CUtensorMap* map, int input, int row, int group,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
      ::"r"(target), "l"(map), "r"(barrier), "r"(input), "r"(row), "r"(group) : "memory");
}
// The same box to the same place of every block of the cluster in `mask`, counted on each one's barrier.
__device__ __forceinline__ void load_box_multicast(uint32_t target, const CUtensorMap* map, int input, int row,
                                                   int group, uint32_t barrier, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;"
      ::"r"(target), "l"(map), "r"(barrier), "r"(input), "r"(row), "r"(group), "h"(mask) : "memory");
}
// Four floats of block `rank`'s shared memory.
__device__ __forceinline__ float4 read_shared_at(uint32_t address, int rank) {
  float4 v;
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address), "r"(rank) : "memory");
  return v;
}
__device__ __forceinline__ void put(float* y, float value) { *y = value; }
__device__ __forceinline__ void put(__nv_bfloat16* y, float value) { *y = __float2bfloat16_rn(value); }

__device__ __forceinline__ void put_whole(float* y, const float (&v)[4]) {
  *reinterpret_cast<float4*>(y) = make_float4(v[0], v[1], v[2], v[3]);
}
__device__ __forceinline__ void put_whole(__nv_bfloat16* y, const float (&v)[4]) {
  const __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(v[0], v[1]), __floats2bfloat162_rn(v[2], v[3])};
  *reinterpret_cast<uint2*>(y) = reinterpret_cast<const uint2&>(pair);
}
// Four neighbouring results, of which `left` are inside; at once if rows of results are whole fours.
template <typename Y> __device__ __forceinline__ void put_four(Y* y, const float (&v)[4], int left, bool is_whole) {
  if (is_whole) return put_whole(y, v);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i < left) put(y + i, v[i]);
}

// --- host

// Boxes of `box` rows and one step of inputs; rows outside are zeros. Strides in elements.
inline int describe(CUtensorMap* map, const void* data, long inputs, long rows, long groups, long row, long group,
                    int box) {
  const cuuint64_t sizes[3] = {(cuuint64_t)inputs, (cuuint64_t)rows, (cuuint64_t)groups};
  const cuuint64_t strides[2] = {(cuuint64_t)row * 2, (cuuint64_t)group * 2};
  const cuuint32_t boxes[3] = {STEP, (cuuint32_t)box, 1};
  const bool is_made = hopper::make_map(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, data, sizes, strides, boxes);
  return is_made ? cudaSuccess : cudaErrorInvalidValue;
}

struct Operands {
  const void *x, *w;
  void* y;
  long inputs, x_row, x_group, w_row, w_group;
};

}  // namespace products
