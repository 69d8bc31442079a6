// Keys: from pages to a ring in shared memory, from there to fragments of e4m3, and one by one where e4m3 fails.
#pragma once
#include <cuda_fp16.h>
#include "rows.cuh"

namespace index_scores_of_rows {

template <Form FORM, int ROWS>
__device__ __forceinline__ void load_keys(const Work& w, Shared<FORM, ROWS>& s) {
  using S = Shape<FORM, ROWS>;
  const int lane = threadIdx.x & 31, page = 1 << w.page_bits, piece = min(page, BLOCK);
  const int piece_bits = min(w.page_bits, 6), pieces = BLOCK >> piece_bits;  // of a block
  const uint32_t piece_bytes = piece * S::ROW_BYTES;
  const int units_at_once = 16 / pieces;  // 32 lanes, one a piece
  Walk walk(s);
  int stage = 0, phase = 0;
  for (Segment segment; walk.next(segment);) {
    int limit, sequence;
    if constexpr (ROWS == 1) {
      limit = s.singles[segment.group].limit, sequence = s.singles[segment.group].sequence;
    } else {
      const Group g = group_of<ROWS>(w, segment.group);
      const int mine = lane < g.places ? limit_of(w, g.tile, g.first_place + lane) : 0;
      limit = __reduce_max_sync(~0u, mine), sequence = (int)w.sequence[g.tile];
    }
    const int64_t* table = w.table + (int64_t)sequence * w.pages;
    for (int begin = 0; begin < segment.count; begin += 2 * units_at_once) {
      const int block = begin + (lane >> (6 - piece_bits));
      const int entry = (w.first + segment.first + block) * BLOCK + (lane & (pieces - 1)) * piece;
      const bool is_there = block < min(segment.count, begin + 2 * units_at_once) && entry < limit;
      const uint8_t* source = nullptr;
      if (is_there) source = w.keys + ((__ldg(table + (entry >> w.page_bits)) << w.page_bits) + (entry & (page - 1))) * S::ROW_BYTES;
      const uint32_t there = __ballot_sync(~0u, is_there);
      for (int unit = 0; unit < units_at_once && begin + 2 * unit < segment.count; ++unit) {
        const int first_lane = unit * 2 * pieces;
        const uint32_t mine = pieces == 16 ? ~0u : ((1u << (2 * pieces)) - 1) << first_lane;
        const uint32_t full = shared_address(&s.full[stage]);
        mbarrier_wait(shared_address(&s.empty[stage]), phase ^ 1);
        if (lane == 0) mbarrier_arrive_expect(full, __popc(there & mine) * piece_bytes);
        __syncwarp();
        if (is_there && (mine >> lane & 1))
          bulk_load(shared_address(s.keys[stage]) + (lane - first_lane) * piece_bytes, source, piece_bytes, full);
        if (++stage == S::STAGES) stage = 0, phase ^= 1;
      }
    }
  }
}

// Bytes of a and b by the selector's digits, whose highest bits must be 0; __byte_perm would mask them once more.
__device__ __forceinline__ uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "r"(selector));
  return bytes;
}

// What a thread holds of 64 keys: rows g and g + 8 of its warp's 16, and the scale of the one that it will store.
struct Fragment {
  uint32_t a[4][4];
  float scale;
  uint32_t special;  // keys of this warp's 16 that need the exact way, one bit each
};

__device__ __forceinline__ void widen(uint32_t word, uint32_t low, uint32_t high, uint32_t& first, uint32_t& second) {
  const uint32_t magnitudes = word & 0x77777777u, shifted = word << 4;
  first = permute(low, high, magnitudes) | (permute(shifted, word, 0x5140) & 0x80808080u);
  second = permute(low, high, magnitudes >> 16) | (permute(shifted, word, 0x7362) & 0x80808080u);
}

__device__ __forceinline__ float scale_of(uint32_t exponent) {
  return exponent ? __uint_as_float(exponent << 23) : __uint_as_float(1u << 22);
}

// Bits of the rows g (0..7) and g + 8 for which any thread of the quad says so.
__device__ __forceinline__ uint32_t rows_of_quads(bool first, bool second) {
  uint32_t found = 0;
  const uint32_t low = __ballot_sync(~0u, first), high = __ballot_sync(~0u, second);
#pragma unroll
  for (int g = 0; g < 8; ++g)
    found |= (low >> (4 * g) & 15 ? 1u << g : 0) | (high >> (4 * g) & 15 ? 256u << g : 0);
  return found;
}

// Thread t of a quad holds the 32 values of group t, so that one table serves it: value 8j + 4u + i of a group is byte
// i of register u of step j.
__device__ __forceinline__ void load_fp4(const uint8_t* rows, Fragment& f) {
  const int lane = threadIdx.x & 31, t = lane & 3;
  uint32_t nonzero[2];
  int below[2];
  float scale[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t* row = reinterpret_cast<const uint32_t*>(rows + ((lane >> 2) + 8 * half) * 68);
    const uint32_t exponents = row[16];
    const uint32_t most = max(max(exponents & 255, exponents >> 8 & 255), max(exponents >> 16 & 255, exponents >> 24));
    const int step = WIDEST + (int)permute(exponents, 0, 0x4440 + t) - (int)most;
    const uint32_t place = max(step, 0);
    const uint32_t low = place * 0x08080800u + 0x14100800u, high = place * 0x08080808u + 0x24201C18u;
    nonzero[half] = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t word = row[4 * t + j];
      nonzero[half] |= word;
      widen(word, low, high, f.a[j][half], f.a[j][2 + half]);
    }
    below[half] = step;
    scale[half] = scale_of(most);
  }
  f.scale = (t & 1 ? scale[1] : scale[0]) * 0.015625f;  // 6 became 384
  f.special = 0;
  if (__any_sync(~0u, min(below[0], below[1]) < 0))
    f.special = rows_of_quads(below[0] < 0 && nonzero[0] & 0x77777777u, below[1] < 0 && nonzero[1] & 0x77777777u);
}

__device__ __forceinline__ void load_fp8(const uint8_t* rows, Fragment& f) {
  const int lane = threadIdx.x & 31, t = lane & 3;
  float scale[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t* row = reinterpret_cast<const uint32_t*>(rows + ((lane >> 2) + 8 * half) * 132);
#pragma unroll
    for (int j = 0; j < 4; ++j) f.a[j][half] = row[8 * t + 2 * j], f.a[j][2 + half] = row[8 * t + 2 * j + 1];
    scale[half] = __uint_as_float(row[32]);
  }
  f.scale = t & 1 ? scale[1] : scale[0];
  f.special = 0;
}

template <Form FORM> __device__ __forceinline__ void load_fragment(const uint8_t* rows, Fragment& f) {
  if constexpr (FORM == FP4) load_fp4(rows, f);
  else load_fp8(rows, f);
}

// --- the exact way, for pairs that e4m3 does not hold

template <Form FORM> __device__ __forceinline__ float key_value(const uint8_t* row, int i) {
  if constexpr (FORM == FP4) {
    const uint32_t code = row[i / 2] >> (i % 2 * 4) & 15, m = code & 7;
    const float value = 0.25f * (float)(m < 2 ? 2 * m : (2 + m % 2) << (m / 2));
    return (code & 8 ? -value : value) * scale_of(row[DIM / 2 + i / 32]);
  } else {
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)row[i]));
    return __half2float(__ushort_as_half((uint16_t)halves)) * *reinterpret_cast<const float*>(row + DIM);
  }
}

// Two heads a lane, values in order.
template <Form FORM>
__device__ __forceinline__ float exact_score(const __nv_bfloat16* query, const float* gamma, float gamma_scale,
                                             const uint8_t* key) {
  const int lane = threadIdx.x & 31;
  float total = 0;
#pragma unroll 1
  for (int head = lane; head < HEADS; head += 32) {
    float dot = 0;
#pragma unroll 1
    for (int i = 0; i < DIM; ++i)
      dot = __fmaf_rn(__bfloat162float(query[head * DIM + i]), key_value<FORM>(key, i), dot);
    total = __fmaf_rn(fmaxf(dot, 0.0f), __fmul_rn(gamma[head], gamma_scale), total);
  }
#pragma unroll
  for (int step = 16; step; step /= 2) total = __fadd_rn(total, __shfl_xor_sync(~0u, total, step));
  return total;
}

// Writes again what a warp's 16 keys of a block need exactly, by the threads that wrote first.
template <Form FORM, int ROWS>
__device__ __forceinline__ void score_exactly(const Work& w, const Queries<ROWS>& q, const uint8_t* rows,
                                              uint32_t special, int entry, int block, float* out,
                                              int64_t width) {
  const int lane = threadIdx.x & 31;
#pragma unroll 1
  for (int r = 0; r < ROWS; ++r) {
    const int64_t row = q.row[r];
    for (uint32_t left = q.is_inexact[r] ? 0xFFFFu : special; left; left &= left - 1) {
      const int m = __ffs(left) - 1;
      if (entry + m >= q.limit[r]) continue;
      const float score = exact_score<FORM>(w.query + row * HEADS * DIM, w.gamma + row * w.gamma_step, w.gamma_scale,
                                            rows + m * (FORM == FP4 ? 68 : 132));
      if (lane == m % 8 * 4 + 2 * block + m / 8) out[r * width + m] = score;
    }
  }
}

}  // namespace index_scores_of_rows
