// Attention of query rows to window and listed entries in V4's official rows, on Hopper: heads of 512, 64 a program.
//
// A row at position t lists its keys so: places 0..127 are positions t-127..t, places 128.. are entries, or picks, in
// their order. Blocks are 64 places of that list; what a row does not see scores -inf and adds exact zeros. The one
// order of a sum:
//   score of a block     32 steps of 16 columns in fp32
//   reference of a block the running maximum, which moves only when a block's maximum exceeds it by 2^8
//   sums of a row        weights in one fragment order, then block by block; 4 steps of 16 keys of a block in fp32
//   chunks               CHUNK blocks make a partial result; a row of more than one folds them in ascending order
// Queries, keys and weights are fp16, where e4m3 times 2^-15..2^7 is exact. Three schedules with the same bits:
//   attend               a program runs a row's whole chunk                                   for many rows
//   widen_keys, then     keys of the call to fp16, then as `attend`                           for rows that share
//     attend_widened                                                                            most of their keys
//   scores, then values  blocks of a row spread over programs, then slices of its columns     for few
//   fold                 chunks into the result
// Who brings keys never fences, for the fence would wait for the loads it has in flight: who reads them does.
#include <cstring>

#include "fold.cuh"
#include "spread.cuh"
#include "widened.cuh"

namespace attention {

template <typename Kernel, typename... Rest>
int launch(Kernel kernel, dim3 grid, int threads, int bytes, bool early, cudaStream_t stream, const Call& call,
           Rest... rest) {
  if (bytes > 48 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return (int)error;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid, config.blockDim = dim3(threads), config.dynamicSmemBytes = bytes, config.stream = stream;
  cudaLaunchAttribute attribute[1];
  attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute[0].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attribute, config.numAttrs = early ? 1 : 0;
  return (int)cudaLaunchKernelEx(&config, kernel, call, rest...);
}

}  // namespace attention

using namespace attention;

// `tensors` in the order of Call's pointers, `sizes` in the order of its integers and then the number of rows.
static Call call_of(void* const* tensors, const int* sizes, float scale) {
  Call call;
  memcpy(&call, tensors, 20 * sizeof(void*));
  memcpy(&call.first, sizes, 15 * sizeof(int));
  call.scale = scale * LOG2_E, call.tolerance = 8.f / call.scale;
  call.most_chunks = (call.most_blocks + CHUNK - 1) / CHUNK;
  return call;
}

// Keys of all rows of a call to the workspace; `runs`: of tiles of one sequence.
extern "C" int widen_attention_keys(void* const* tensors, const int* sizes, int runs, void* stream) {
  const Call call = call_of(tensors, sizes, 1.f);
  const int blocks = call.num_places / call.per_tile * 3 + runs * ((call.run_entries + BLOCK - 1) / BLOCK);
  return launch(widen_keys, dim3(blocks), 128, 0, false, (cudaStream_t)stream, call);
}

// `each`: 0 for whole rows in one program, -1 for the same with widened keys; else blocks of a program of `scores`, with
// slices of `width` columns whose keys are requested `depth` blocks ahead.
extern "C" int sparse_attention(void* const* tensors, const int* sizes, float scale, int each, int width, int depth,
                                void* stream) {
  const Call call = call_of(tensors, sizes, scale);
  int device, programs;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&programs, cudaDevAttrMultiProcessorCount, device);
  const int units = sizes[15] * (call.heads / 64), chunks = call.most_chunks;
  const cudaStream_t on = (cudaStream_t)stream;
  int error;
  if (each == -1) {
    error = launch(attend_widened, dim3(min(units * chunks, programs)), 512, SharedWidened::BYTES, false, on, call,
                   units * chunks);
  } else if (each == 0) {
    error = launch(attend, dim3(min(units * chunks, programs)), 512, Shared::BYTES, false, on, call, units * chunks);
  } else {
    const dim3 runs((call.most_blocks + each - 1) / each, units);
    error = launch(scores, runs, 512, SharedScores::BYTES, false, on, call, each);
    if (error) return error;
    const dim3 grid(DIM / width * chunks, units);
    if (width == 64 && depth == 4) error = launch(values<64, 4>, grid, 896, SharedValues<64>::BYTES, true, on, call);
    else if (width == 64) error = launch(values<64, 1>, grid, 896, SharedValues<64>::BYTES, true, on, call);
    else if (depth == 3) error = launch(values<128, 3>, grid, 896, SharedValues<128>::BYTES, true, on, call);
    else error = launch(values<128, 1>, grid, 896, SharedValues<128>::BYTES, true, on, call);
  }
  if (error || chunks == 1) return error;
  return launch(fold, dim3(units, 16), 256, 0, each > 0, on, call);
}
