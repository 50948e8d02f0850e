// The interface of CUDA's runtime, for the handlers of intercepted calls (define_calls.hpp). The
// other interfaces are preload/cuda/driver.hpp and preload/hip/runtime.hpp.
#pragma once

#include <cuda_runtime_api.h>

#include "preload/interpose.hpp"
#include "preload/served_memory.hpp"

// Programs call deprecated functions, so uvmalloc intercepts these too.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define NEXT_OF_RUNTIME(function) UVMALLOC_NEXT(function, "libcudart.so")

namespace uvm::preload::cuda {

// Returns the thread's current context, which owns memory that is allocated now, or nullptr.
const void* current_context() noexcept;
// Returns whether the device's primary context was destroyed.
bool is_inactive(int device) noexcept;

struct Runtime {
  using Pool = cudaMemPool_t;
  static constexpr auto kVendor = ServedMemory::Vendor::kCuda;
  // cudaFree and cudaFreeHost free different kinds of memory.
  static constexpr auto kFreesOfDevice = ServedMemory::Frees::kAllButPinned;
  static constexpr auto kFreesOfHost = ServedMemory::Frees::kPinned;
  static constexpr unsigned kAttachGlobal = cudaMemAttachGlobal;
  static constexpr unsigned kPinnedFlags = cudaHostAllocPortable | cudaHostAllocMapped;
  static constexpr unsigned kWriteCombined = cudaHostAllocWriteCombined;

  // Returns the thread's current device, or -1 if it has no device; then the forwarded call fails.
  static int device() noexcept { return number_of(NEXT_OF_RUNTIME(cudaGetDevice)); }
  // Returns the device of a stream. Stream 0 belongs to the current device.
  static int device_of(cudaStream_t stream) noexcept {
    return device_of_stream(NEXT_OF_RUNTIME(cudaStreamGetDevice), stream, device);
  }
  static int device_of_context() noexcept { return device(); }
  static int device_to_reset() noexcept { return device(); }
  static bool is_reset(int device) noexcept { return is_inactive(device); }
  static const void* context_of_thread() noexcept { return current_context(); }

  static cudaError_t default_pool(cudaMemPool_t* out, int device) {
    return pass_on(NEXT_OF_RUNTIME(cudaDeviceGetDefaultMemPool), out, device);
  }
  static cudaError_t current_pool(cudaMemPool_t* out, int device) {
    return pass_on(NEXT_OF_RUNTIME(cudaDeviceGetMemPool), out, device);
  }
  static bool is_capturing(cudaStream_t stream) {
    return is_captured(NEXT_OF_RUNTIME(cudaStreamIsCapturing), stream);
  }
};

}  // namespace uvm::preload::cuda
