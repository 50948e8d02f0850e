// The runtime's allocation calls as programs have them that were compiled for a default stream per
// thread.
#include <cuda_runtime_api.h>

#include "preload/cuda/vendor.hpp"
#include "preload/served_answers.hpp"

using namespace uvm::preload;
using namespace uvm::preload::cuda;

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

UVMALLOC_INTERPOSE cudaError_t cudaMallocAsync_ptsz(void** out, std::size_t size_bytes,
                                                    cudaStream_t stream) {
  if (serve_in_order(UVMALLOC_ASKED(cudaMallocAsync_ptsz, kDevice, device_of_runtime), out,
                     size_bytes, stream, per_thread(stream), POOL_QUESTIONS)) {
    return cudaSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(cudaMallocAsync_ptsz), out, size_bytes, stream);
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocFromPoolAsync_ptsz(void** out, std::size_t size_bytes,
                                                            cudaMemPool_t pool,
                                                            cudaStream_t stream) {
  if (serve_from_pool(UVMALLOC_ASKED(cudaMallocFromPoolAsync_ptsz, kDevice, device_of_runtime), out,
                      size_bytes, pool, stream, per_thread(stream), POOL_QUESTIONS))
    return cudaSuccess;
  return pass_on(NEXT_OF_RUNTIME(cudaMallocFromPoolAsync_ptsz), out, size_bytes, pool, stream);
}

UVMALLOC_INTERPOSE cudaError_t cudaFreeAsync_ptsz(void* address, cudaStream_t stream) {
  return release_in_order(address, stream, per_thread(stream), device_of_stream,
                          NEXT_OF_RUNTIME(cudaFreeAsync_ptsz));
}

UVMALLOC_INTERPOSE cudaError_t cudaStreamAttachMemAsync_ptsz(cudaStream_t stream, void* address,
                                                             std::size_t size_bytes,
                                                             unsigned flags) {
  if (find(address)) return cudaSuccess;
  return pass_on(NEXT_OF_RUNTIME(cudaStreamAttachMemAsync_ptsz), stream, address, size_bytes,
                 flags);
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
