// Words of keys and queries: loads and stores, FP8 codes and bfloat16 to fp16, orders of columns among lanes.
#pragma once
#include <cuda_fp16.h>

#include "lists.cuh"

namespace attention {

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
// Copies 16 aligned bytes to shared memory on their own, past L1; `bytes` 0 stores zeros and reads nothing.
__device__ __forceinline__ void copy_16(uint32_t target, const void* source, int bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes) : "memory");
}
// `bulk_load` by one lane of a whole warp, if all say so. Where lanes copy each for itself, the compiler writes a loop
// over lanes.
__device__ __forceinline__ void bulk_load_elected(bool is_wanted, uint32_t target, const void* source, uint32_t bytes,
                                                  uint32_t barrier) {
  asm volatile(
      "{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\nsetp.ne.and.u32 one, %0, 0, one;\n"
      "@one cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%1], [%2], %3, [%4];\n}"
      ::"r"((uint32_t)is_wanted), "r"(target), "l"(source), "r"(bytes), "r"(barrier) : "memory");
}
__device__ __forceinline__ void copy_4(uint32_t target, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(source) : "memory");
}
// Until all copies that this thread began are there, for this thread.
__device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
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

}  // namespace attention
