// The interface of CUDA's driver, for the handlers of intercepted calls (define_calls.hpp).
#pragma once

#include <cuda.h>

#include "preload/cuda/runtime.hpp"
#include "preload/interpose.hpp"

#define NEXT_OF_DRIVER(function) UVMALLOC_NEXT(function, "libcuda.so")

namespace uvm::preload::cuda {

struct Driver {
  using Pool = CUmemoryPool;
  static constexpr auto kVendor = Runtime::kVendor;
  static constexpr auto kFreesOfDevice = Runtime::kFreesOfDevice;
  static constexpr auto kFreesOfHost = Runtime::kFreesOfHost;
  static constexpr unsigned kAttachGlobal = CU_MEM_ATTACH_GLOBAL;
  static constexpr unsigned kPinnedFlags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
  static constexpr unsigned kWriteCombined = CU_MEMHOSTALLOC_WRITECOMBINED;
  static constexpr bool accepts_elements(unsigned bytes) {
    return bytes == 4 || bytes == 8 || bytes == 16;
  }

  static constexpr auto kPinnedMemory = CU_MEM_ALLOCATION_TYPE_PINNED;
  static constexpr auto kDeviceLocation = CU_MEM_LOCATION_TYPE_DEVICE;
  static constexpr auto kMayUse = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  static constexpr auto kMayNotUse = CU_MEM_ACCESS_FLAGS_PROT_NONE;

  static bool can_serve_virtual_memory() noexcept {
    CUdevice device = 0;
    return pass_on(NEXT_OF_DRIVER(cuCtxGetDevice), &device) != CUDA_ERROR_NOT_INITIALIZED;
  }
  static int device() noexcept { return number_of(NEXT_OF_DRIVER(cuCtxGetDevice)); }
  // If the driver lacks cuStreamGetDevice, every stream counts as a stream of the current device.
  static int device_of(CUstream stream) noexcept {
    return device_of_stream(NEXT_OF_DRIVER(cuStreamGetDevice), stream, device);
  }
  // Returns the device of `context`; nullptr is the current context.
  static int device_of_context(CUcontext context = nullptr) noexcept;
  static int device_to_reset(CUdevice device) noexcept { return device; }
  static bool is_reset(int device) noexcept { return is_inactive(device); }
  static const void* context_of_thread() noexcept { return current_context(); }

  static CUresult default_pool(CUmemoryPool* out, int device) {
    return pass_on(NEXT_OF_DRIVER(cuDeviceGetDefaultMemPool), out, device);
  }
  static CUresult current_pool(CUmemoryPool* out, int device) {
    return pass_on(NEXT_OF_DRIVER(cuDeviceGetMemPool), out, device);
  }
  static bool is_capturing(CUstream stream) {
    return is_captured(NEXT_OF_DRIVER(cuStreamIsCapturing), stream);
  }
};

// Call before the context is destroyed. Forgets its streams, which no call destroys one by one.
void note_streams_gone(CUcontext context);

}  // namespace uvm::preload::cuda
