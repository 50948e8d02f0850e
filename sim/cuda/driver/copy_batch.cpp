// Batches of copies, in the forms of CUDA 12.8 (with the index of a copy that failed) and CUDA 13.
#include "sim/api/copy_batch.hpp"

#include "sim/cuda/driver/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

// CUdeviceptr is an integer as wide as a pointer.
CopyBatch batch_of(const CUdeviceptr* to, const CUdeviceptr* from, const size_t* sizes,
                   size_t count, CUstream stream) {
  return {reinterpret_cast<void* const*>(to), reinterpret_cast<const void* const*>(from), sizes,
          count, stream};
}

}  // namespace

CU_API cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                          CUmemcpyAttributes* attributes, size_t* indexes, size_t attribute_count,
                          size_t* failed, CUstream stream) {
  CU_ENTER_CONTEXT;
  (void)device;
  if (failed == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return finish(copy_batch(batch_of(to, from, sizes, count, stream),
                           {attributes, indexes, attribute_count}, failed));
}

CU_API cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                             CUmemcpyAttributes* attributes, size_t* indexes,
                             size_t attribute_count, CUstream stream) {
  CU_ENTER_CONTEXT;
  (void)device;
  size_t failed = 0;
  return finish(copy_batch(batch_of(to, from, sizes, count, stream),
                           {attributes, indexes, attribute_count}, &failed));
}
