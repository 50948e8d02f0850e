// The allocation calls of CUDA's runtime that are left to CUDA.
#include "preload/cuda/vendor.hpp"
#include "preload/left_answers.hpp"

using namespace uvm::preload;
using namespace uvm::preload::cuda;

// NOLINTBEGIN(readability-identifier-naming)

UVMALLOC_INTERPOSE cudaError_t cudaMallocArray(cudaArray_t* out,
                                               const cudaChannelFormatDesc* format,
                                               std::size_t width, std::size_t height,
                                               unsigned flags) {
  return UVMALLOC_LEAVE(cudaMallocArray, NEXT_OF_RUNTIME, out, format, width, height, flags);
}

UVMALLOC_INTERPOSE cudaError_t cudaMalloc3DArray(cudaArray_t* out,
                                                 const cudaChannelFormatDesc* format,
                                                 cudaExtent extent, unsigned flags) {
  return UVMALLOC_LEAVE(cudaMalloc3DArray, NEXT_OF_RUNTIME, out, format, extent, flags);
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocMipmappedArray(cudaMipmappedArray_t* out,
                                                        const cudaChannelFormatDesc* format,
                                                        cudaExtent extent, unsigned levels,
                                                        unsigned flags) {
  return UVMALLOC_LEAVE(cudaMallocMipmappedArray, NEXT_OF_RUNTIME, out, format, extent, levels,
                        flags);
}

UVMALLOC_INTERPOSE cudaError_t cudaIpcOpenMemHandle(void** out, cudaIpcMemHandle_t handle,
                                                    unsigned flags) {
  return UVMALLOC_LEAVE(cudaIpcOpenMemHandle, NEXT_OF_RUNTIME, out, handle, flags);
}

UVMALLOC_INTERPOSE cudaError_t cudaImportExternalMemory(
    cudaExternalMemory_t* out, const cudaExternalMemoryHandleDesc* description) {
  return UVMALLOC_LEAVE(cudaImportExternalMemory, NEXT_OF_RUNTIME, out, description);
}

// NOLINTEND(readability-identifier-naming)
