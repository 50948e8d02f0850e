// Kernels: registration by nvcc's start-up code, and launches. The simulated device runs no GPU
// code. A kernel runs if it is the kernel of torch.cuda._sleep, or if the plug-in of UVMSIM_KERNELS
// has code for it. Any other launch fails with "no kernel image", and prints the kernel's name on
// stderr once.
#include <cuda.h>

#include <cstdint>

#include "sim/api/kernel_launch.hpp"
#include "sim/cuda/common/device_attributes.hpp"
#include "sim/cuda/runtime/entry.hpp"
#include "sim/engine/kernel_registry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

uvmsim_grid grid_of(dim3 blocks, dim3 threads) {
  return {{blocks.x, blocks.y, blocks.z}, {threads.x, threads.y, threads.z}};
}

cudaError_t result_of(const LaunchResult& result) {
  switch (result.kind) {
    case LaunchResult::Kind::kLaunched:
      return finish(result.status);
    case LaunchResult::Kind::kUnknownFunction:
      return fail(cudaErrorInvalidDeviceFunction);
    case LaunchResult::Kind::kNoImage:
      break;
  }
  return fail(cudaErrorNoKernelImageForDevice);
}

cudaError_t launch(int device, const void* function, const uvmsim_grid& grid, void** arguments,
                   cudaStream_t stream) {
  return result_of(launch_kernel({device, stream, function, grid, arguments}));
}

struct CallConfiguration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  void* stream = nullptr;
};

thread_local CallConfiguration call_configuration;

}  // namespace

RT_API_AS(void**) __cudaRegisterFatBinary(void*) {
  UVMSIM_CALL_RECORD;
  call_record.enter();
  static void* handle[1] = {nullptr};
  return handle;
}

RT_API_AS(void) __cudaRegisterFatBinaryEnd(void**) {
  UVMSIM_CALL_RECORD;
  call_record.enter();
}

RT_API_AS(void) __cudaUnregisterFatBinary(void**) {
  UVMSIM_CALL_RECORD;
  call_record.enter();
}

RT_API_AS(void)
__cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*, uint3*,
                       dim3*, dim3*, int*) {
  UVMSIM_CALL_RECORD;
  call_record.enter();
  KernelRegistry::instance().add(function, name);
}

RT_API_AS(void) __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {
  UVMSIM_CALL_RECORD;
  call_record.enter();
}

RT_API_AS(void) __cudaRegisterHostVar(void**, const char*, char*, size_t) {
  UVMSIM_CALL_RECORD;
  call_record.enter();
}

RT_API_AS(void)
__cudaRegisterManagedVar(void**, void**, char*, const char*, int, size_t, int, int) {
  UVMSIM_CALL_RECORD;
  call_record.enter();
}

RT_API_AS(char) __cudaInitModule(void**) {
  UVMSIM_CALL_RECORD;
  call_record.enter();
  return 1;
}

RT_API_AS(unsigned)
__cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void* stream) {
  UVMSIM_CALL_RECORD;
  call_record.enter();
  call_configuration = {grid, block, shared_bytes, stream};
  return 0;
}

RT_API __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  UVMSIM_CALL_RECORD;
  call_record.enter();
  *grid = call_configuration.grid;
  *block = call_configuration.block;
  *shared_bytes = call_configuration.shared_bytes;
  *static_cast<void**>(stream) = call_configuration.stream;
  return cudaSuccess;
}

// A kernel's handle is its host function.
RT_API __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  RT_ENTER;
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

RT_API cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  RT_ENTER;
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

// The driver's handle is the host function too.
RT_API cudaGetFuncBySymbol(cudaFunction_t* out, const void* function) {
  RT_ENTER;
  if (out == nullptr) return fail(cudaErrorInvalidValue);
  if (KernelRegistry::instance().name_of(function) == nullptr)
    return fail(cudaErrorInvalidDeviceFunction);
  *out = static_cast<cudaFunction_t>(const_cast<void*>(function));
  return cudaSuccess;
}

RT_API cudaFuncGetParamInfo(const void* function, size_t index, size_t* offset_bytes,
                            size_t* size_bytes) {
  RT_ENTER;
  if (KernelRegistry::instance().name_of(function) == nullptr)
    return fail(cudaErrorInvalidDeviceFunction);
  return finish(parameter_of(function, index, offset_bytes, size_bytes));
}

RT_API __cudaLaunchKernel(cudaKernel_t kernel, dim3 blocks, dim3 threads, void** arguments, size_t,
                          cudaStream_t stream) {
  RT_ENTER_DEVICE;
  return launch(device, kernel, grid_of(blocks, threads), arguments, stream);
}

RT_API cudaLaunchKernel(const void* function, dim3 blocks, dim3 threads, void** arguments, size_t,
                        cudaStream_t stream) {
  RT_ENTER_DEVICE;
  return launch(device, function, grid_of(blocks, threads), arguments, stream);
}

RT_API cudaLaunchCooperativeKernel(const void* function, dim3 blocks, dim3 threads,
                                   void** arguments, size_t, cudaStream_t stream) {
  RT_ENTER_DEVICE;
  return launch(device, function, grid_of(blocks, threads), arguments, stream);
}

RT_API cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration, const void* function,
                           void** arguments) {
  RT_ENTER_DEVICE;
  if (configuration == nullptr) return fail(cudaErrorInvalidValue);
  return launch(device, function, grid_of(configuration->gridDim, configuration->blockDim),
                arguments, configuration->stream);
}

RT_API cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                        const cudaKernelNodeParams* parameters) {
  RT_ENTER_DEVICE;
  if (parameters == nullptr || parameters->kernelParams == nullptr)
    return fail(cudaErrorInvalidValue);
  return result_of(set_graph_kernel(
      exec, node,
      {device, nullptr, parameters->func, grid_of(parameters->gridDim, parameters->blockDim),
       parameters->kernelParams}));
}

RT_API cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  RT_ENTER_DEVICE;
  if (attributes == nullptr) return fail(cudaErrorInvalidValue);
  *attributes = {};
  attributes->maxThreadsPerBlock =
      device_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device).value_or(0);
  attributes->maxDynamicSharedSizeBytes =
      device_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, device).value_or(0);
  attributes->binaryVersion = 90;
  attributes->ptxVersion = 90;
  return cudaSuccess;
}

RT_API cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  RT_ENTER_DEVICE;
  return cudaSuccess;
}

RT_API cudaFuncSetCacheConfig(const void*, cudaFuncCache) {
  RT_ENTER_DEVICE;
  return cudaSuccess;
}

RT_API cudaFuncGetName(const char** name, const void* function) {
  RT_ENTER;
  if (name == nullptr) return fail(cudaErrorInvalidValue);
  *name = KernelRegistry::instance().name_of(function);
  return *name != nullptr ? cudaSuccess : fail(cudaErrorInvalidDeviceFunction);
}

RT_API cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t,
                                                              unsigned) {
  RT_ENTER_DEVICE;
  if (blocks == nullptr) return fail(cudaErrorInvalidValue);
  *blocks = 2;
  return cudaSuccess;
}

RT_API cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  RT_ENTER_DEVICE;
  if (blocks == nullptr) return fail(cudaErrorInvalidValue);
  *blocks = 2;
  return cudaSuccess;
}
