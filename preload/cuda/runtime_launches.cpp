// Launches of kernels by CUDA's runtime, passed on after the memory that they use has been noted
// where memory is short. With the calls after which a handle may name another kernel.
#include "preload/cuda/kernel_words.hpp"
#include "preload/cuda/vendor.hpp"
#include "preload/kernel_arguments.hpp"
#include "preload/memory_uses.hpp"
#include "preload/served_answers.hpp"

using namespace uvm::preload;
using namespace uvm::preload::cuda;

namespace {

// A stream is of the current device where a kernel is launched on it.
void note_runtime_launch(const char* call, const void* symbol, void** arguments,
                         uvm::StreamHandle stream) noexcept {
  note_launch(call, device_of_runtime(), stream,
              [&] { return words_of_symbol(symbol, {.each = arguments}); });
}

void note_runtime_launch(const char* call, cudaKernel_t kernel, void** arguments,
                         uvm::StreamHandle stream) noexcept {
  note_launch(call, device_of_runtime(), stream,
              [&] { return words_of(CUkernel{kernel}, {.each = arguments}); });
}

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

UVMALLOC_INTERPOSE cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block,
                                                void** arguments, std::size_t shared_bytes,
                                                cudaStream_t stream) {
  if (wants_uses()) note_runtime_launch(__func__, function, arguments, stream);
  return pass_on(NEXT_OF_RUNTIME(cudaLaunchKernel), function, grid, block, arguments, shared_bytes,
                 stream);
}

UVMALLOC_INTERPOSE cudaError_t cudaLaunchKernel_ptsz(const void* function, dim3 grid, dim3 block,
                                                     void** arguments, std::size_t shared_bytes,
                                                     cudaStream_t stream) {
  if (wants_uses()) note_runtime_launch(__func__, function, arguments, per_thread(stream));
  return pass_on(NEXT_OF_RUNTIME(cudaLaunchKernel_ptsz), function, grid, block, arguments,
                 shared_bytes, stream);
}

UVMALLOC_INTERPOSE cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration,
                                                   const void* function, void** arguments) {
  if (wants_uses() && configuration != nullptr)
    note_runtime_launch(__func__, function, arguments, configuration->stream);
  return pass_on(NEXT_OF_RUNTIME(cudaLaunchKernelExC), configuration, function, arguments);
}

UVMALLOC_INTERPOSE cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t* configuration,
                                                        const void* function, void** arguments) {
  if (wants_uses() && configuration != nullptr)
    note_runtime_launch(__func__, function, arguments, per_thread(configuration->stream));
  return pass_on(NEXT_OF_RUNTIME(cudaLaunchKernelExC_ptsz), configuration, function, arguments);
}

UVMALLOC_INTERPOSE cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid,
                                                           dim3 block, void** arguments,
                                                           std::size_t shared_bytes,
                                                           cudaStream_t stream) {
  if (wants_uses()) note_runtime_launch(__func__, function, arguments, stream);
  return pass_on(NEXT_OF_RUNTIME(cudaLaunchCooperativeKernel), function, grid, block, arguments,
                 shared_bytes, stream);
}

UVMALLOC_INTERPOSE cudaError_t cudaLaunchCooperativeKernel_ptsz(const void* function, dim3 grid,
                                                                dim3 block, void** arguments,
                                                                std::size_t shared_bytes,
                                                                cudaStream_t stream) {
  if (wants_uses()) note_runtime_launch(__func__, function, arguments, per_thread(stream));
  return pass_on(NEXT_OF_RUNTIME(cudaLaunchCooperativeKernel_ptsz), function, grid, block,
                 arguments, shared_bytes, stream);
}

// What <<<>>> calls since CUDA 13.
UVMALLOC_INTERPOSE cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block,
                                                  void** arguments, std::size_t shared_bytes,
                                                  cudaStream_t stream) {
  if (wants_uses()) note_runtime_launch(__func__, kernel, arguments, stream);
  return pass_on(NEXT_OF_RUNTIME(__cudaLaunchKernel), kernel, grid, block, arguments, shared_bytes,
                 stream);
}

UVMALLOC_INTERPOSE cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block,
                                                       void** arguments, std::size_t shared_bytes,
                                                       cudaStream_t stream) {
  if (wants_uses()) note_runtime_launch(__func__, kernel, arguments, per_thread(stream));
  return pass_on(NEXT_OF_RUNTIME(__cudaLaunchKernel_ptsz), kernel, grid, block, arguments,
                 shared_bytes, stream);
}

UVMALLOC_INTERPOSE void __cudaUnregisterFatBinary(void** handle) {
  forget_layouts(__func__);
  const auto next = NEXT_OF_RUNTIME(__cudaUnregisterFatBinary);
  if (next != nullptr) next(handle);
}

UVMALLOC_INTERPOSE cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  forget_layouts(__func__);
  return pass_on(NEXT_OF_RUNTIME(cudaLibraryUnload), library);
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
