// The allocation calls of CUDA's driver that are left to CUDA.
#include <cuda.h>

#include "preload/cuda/driver.hpp"
#include "preload/left_answers.hpp"

using namespace uvm::preload;
using namespace uvm::preload::cuda;

// NOLINTBEGIN(readability-identifier-naming)

UVMALLOC_INTERPOSE CUresult cuArrayCreate_v2(CUarray* out,
                                             const CUDA_ARRAY_DESCRIPTOR* description) {
  return UVMALLOC_LEAVE(cuArrayCreate_v2, NEXT_OF_DRIVER, out, description);
}

UVMALLOC_INTERPOSE CUresult cuArray3DCreate_v2(CUarray* out,
                                               const CUDA_ARRAY3D_DESCRIPTOR* description) {
  return UVMALLOC_LEAVE(cuArray3DCreate_v2, NEXT_OF_DRIVER, out, description);
}

UVMALLOC_INTERPOSE CUresult cuMipmappedArrayCreate(CUmipmappedArray* out,
                                                   const CUDA_ARRAY3D_DESCRIPTOR* description,
                                                   unsigned levels) {
  return UVMALLOC_LEAVE(cuMipmappedArrayCreate, NEXT_OF_DRIVER, out, description, levels);
}

UVMALLOC_INTERPOSE CUresult cuMemCreate(CUmemGenericAllocationHandle* out, std::size_t size_bytes,
                                        const CUmemAllocationProp* properties,
                                        unsigned long long flags) {
  return UVMALLOC_LEAVE(cuMemCreate, NEXT_OF_DRIVER, out, size_bytes, properties, flags);
}

UVMALLOC_INTERPOSE CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* out, CUipcMemHandle handle,
                                                  unsigned flags) {
  return UVMALLOC_LEAVE(cuIpcOpenMemHandle_v2, NEXT_OF_DRIVER, out, handle, flags);
}

// The form of CUDA 10 and earlier.
#undef cuIpcOpenMemHandle
UVMALLOC_INTERPOSE CUresult cuIpcOpenMemHandle(CUdeviceptr* out, CUipcMemHandle handle,
                                               unsigned flags) {
  return UVMALLOC_LEAVE(cuIpcOpenMemHandle, NEXT_OF_DRIVER, out, handle, flags);
}

UVMALLOC_INTERPOSE CUresult
cuImportExternalMemory(CUexternalMemory* out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* description) {
  return UVMALLOC_LEAVE(cuImportExternalMemory, NEXT_OF_DRIVER, out, description);
}

// NOLINTEND(readability-identifier-naming)
