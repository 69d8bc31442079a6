// Chunks of long lists into results.
#pragma once
#include "results.cuh"

namespace attention {

// Chunks of a row in ascending order. grid (units, 16), 256 threads: 32 columns a program.
__global__ void __launch_bounds__(256) fold(const __grid_constant__ Call call) {
  const int thread = threadIdx.x & 127, lane = thread & 31, r = (thread >> 5) * 16 + (lane >> 2);
  const int groups = call.heads / 64, number = blockIdx.x, head = number % groups * 64;
  const Row row = find_row(call, number / groups);
  grid_dependency_wait();  // also where nothing is folded: who waits for this kernel relies on what came before it
  if (row.chunks <= 1) return;
  const size_t item = (size_t)number * call.most_chunks;
  const float* sums = call.sums + item * 128;
  float m0 = -1e30f, m1 = -1e30f;
  for (int k = 0; k < row.chunks; ++k) {
    m0 = fmaxf(m0, __ldcg(sums + k * 128 + r));
    m1 = fmaxf(m1, __ldcg(sums + k * 128 + r + 8));
  }
  float l0 = sink_weight(call.sink[head + r], m0, call.scale);
  float l1 = sink_weight(call.sink[head + r + 8], m1, call.scale);
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

}  // namespace attention
