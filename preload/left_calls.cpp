// The allocation calls of CUDA that are left to CUDA. They are counted, so that the report can say
// how much of a program's memory is not served.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <uvmalloc/preload/call_coverage.hpp>
#include <uvmalloc/preload/interpose.hpp>
#include <uvmalloc/preload/served_memory.hpp>

namespace uvm::preload {
namespace {

// Passes a call on whose arguments are those of its declaration.
template <class Function>
struct Forward;
template <class Result, class... Parameters>
struct Forward<Result (*)(Parameters...)> {
  static Result call(Call call, Result (*next)(Parameters...), Parameters... arguments) {
    if (wants_to_serve()) count(call, Outcome::kLeft);
    return pass_on(next, arguments...);
  }
};

}  // namespace
}  // namespace uvm::preload

using namespace uvm::preload;

#define LEAVE(function, next, ...) \
  Forward<decltype(&(function))>::call(kCall_##function, next, __VA_ARGS__)
#define LEAVE_TO_RUNTIME(function, ...) LEAVE(function, NEXT_OF_RUNTIME(function), __VA_ARGS__)
#define LEAVE_TO_DRIVER(function, ...) LEAVE(function, NEXT_OF_DRIVER(function), __VA_ARGS__)

// NOLINTBEGIN(readability-identifier-naming)

UVMALLOC_INTERPOSE cudaError_t cudaMallocArray(cudaArray_t* out,
                                               const cudaChannelFormatDesc* format,
                                               std::size_t width, std::size_t height,
                                               unsigned flags) {
  return LEAVE_TO_RUNTIME(cudaMallocArray, out, format, width, height, flags);
}

UVMALLOC_INTERPOSE cudaError_t cudaMalloc3DArray(cudaArray_t* out,
                                                 const cudaChannelFormatDesc* format,
                                                 cudaExtent extent, unsigned flags) {
  return LEAVE_TO_RUNTIME(cudaMalloc3DArray, out, format, extent, flags);
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocMipmappedArray(cudaMipmappedArray_t* out,
                                                        const cudaChannelFormatDesc* format,
                                                        cudaExtent extent, unsigned levels,
                                                        unsigned flags) {
  return LEAVE_TO_RUNTIME(cudaMallocMipmappedArray, out, format, extent, levels, flags);
}

UVMALLOC_INTERPOSE cudaError_t cudaIpcOpenMemHandle(void** out, cudaIpcMemHandle_t handle,
                                                    unsigned flags) {
  return LEAVE_TO_RUNTIME(cudaIpcOpenMemHandle, out, handle, flags);
}

UVMALLOC_INTERPOSE cudaError_t cudaImportExternalMemory(
    cudaExternalMemory_t* out, const cudaExternalMemoryHandleDesc* description) {
  return LEAVE_TO_RUNTIME(cudaImportExternalMemory, out, description);
}

UVMALLOC_INTERPOSE CUresult cuArrayCreate_v2(CUarray* out,
                                             const CUDA_ARRAY_DESCRIPTOR* description) {
  return LEAVE_TO_DRIVER(cuArrayCreate_v2, out, description);
}

UVMALLOC_INTERPOSE CUresult cuArray3DCreate_v2(CUarray* out,
                                               const CUDA_ARRAY3D_DESCRIPTOR* description) {
  return LEAVE_TO_DRIVER(cuArray3DCreate_v2, out, description);
}

UVMALLOC_INTERPOSE CUresult cuMipmappedArrayCreate(CUmipmappedArray* out,
                                                   const CUDA_ARRAY3D_DESCRIPTOR* description,
                                                   unsigned levels) {
  return LEAVE_TO_DRIVER(cuMipmappedArrayCreate, out, description, levels);
}

UVMALLOC_INTERPOSE CUresult cuMemCreate(CUmemGenericAllocationHandle* out, std::size_t size_bytes,
                                        const CUmemAllocationProp* properties,
                                        unsigned long long flags) {
  return LEAVE_TO_DRIVER(cuMemCreate, out, size_bytes, properties, flags);
}

UVMALLOC_INTERPOSE CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* out, CUipcMemHandle handle,
                                                  unsigned flags) {
  return LEAVE_TO_DRIVER(cuIpcOpenMemHandle_v2, out, handle, flags);
}

UVMALLOC_INTERPOSE CUresult
cuImportExternalMemory(CUexternalMemory* out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* description) {
  return LEAVE_TO_DRIVER(cuImportExternalMemory, out, description);
}

// NOLINTEND(readability-identifier-naming)
