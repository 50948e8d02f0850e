// Batches of copies. HIP's call has one more argument, so it is not translated from this one.
#include "sim/api/copy_batch.hpp"

#include <cuda.h>

#include "sim/cuda/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

static_assert(sizeof(cudaMemcpyAttributes) == sizeof(CUmemcpyAttributes));

RT_API cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* sizes,
                            size_t count, cudaMemcpyAttributes* attributes, size_t* indexes,
                            size_t attribute_count, cudaStream_t stream) {
  RT_ENTER_DEVICE;
  (void)device;
  size_t failed = 0;
  return finish(copy_batch({to, from, sizes, count, stream}, {attributes, indexes, attribute_count},
                           &failed));
}
