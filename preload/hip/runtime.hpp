// The interface of HIP's runtime, for the handlers of intercepted calls (define_calls.hpp). CUDA's
// interfaces are preload/cuda/runtime.hpp and preload/cuda/driver.hpp.
#pragma once

// Leaves out the templates that the header adds for C++, which make a function's name ambiguous.
#ifndef __HIP_DISABLE_CPP_FUNCTIONS__
#define __HIP_DISABLE_CPP_FUNCTIONS__
#endif
#include <hip/hip_runtime_api.h>

#include "preload/interpose.hpp"
#include "preload/served_memory.hpp"

// Programs call deprecated functions, so uvmalloc intercepts these too.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define NEXT_OF_RUNTIME(function) UVMALLOC_NEXT(function, "libamdhip64.so")

namespace uvm::preload::hip {

struct Runtime {
  using Pool = hipMemPool_t;
  static constexpr auto kVendor = ServedMemory::Vendor::kHip;
  // hipFree and hipHostFree each free memory of every kind.
  static constexpr auto kFreesOfDevice = ServedMemory::Frees::kAll;
  static constexpr auto kFreesOfHost = ServedMemory::Frees::kAll;
  static constexpr unsigned kAttachGlobal = hipMemAttachGlobal;
  // The flags of hipHostMalloc and of hipHostAlloc have the same values.
  static constexpr unsigned kPinnedFlags = hipHostMallocPortable | hipHostMallocMapped;
  static constexpr unsigned kWriteCombined = hipHostMallocWriteCombined;
  static constexpr bool accepts_elements(unsigned) { return true; }

  static constexpr auto kPinnedMemory = hipMemAllocationTypePinned;
  static constexpr auto kDeviceLocation = hipMemLocationTypeDevice;
  static constexpr auto kMayUse = hipMemAccessFlagsProtReadWrite;
  static constexpr auto kMayNotUse = hipMemAccessFlagsProtNone;

  // The structures of these calls had other members before HIP 6.
  static bool can_serve_virtual_memory() noexcept {
    int version = 0;
    return pass_on(NEXT_OF_RUNTIME(hipDriverGetVersion), &version) == hipSuccess &&
           version >= 60000000;
  }
  static int device() noexcept { return number_of(NEXT_OF_RUNTIME(hipGetDevice)); }
  static int device_of(hipStream_t stream) noexcept {
    return device_of_stream(NEXT_OF_RUNTIME(hipStreamGetDevice), stream, device);
  }
  // In HIP a context is a device.
  static int device_of_context() noexcept { return device(); }
  static const void* context_of_thread() noexcept { return nullptr; }
  static int device_to_reset() noexcept { return device(); }
  static bool is_reset(int) noexcept { return false; }

  static hipError_t default_pool(hipMemPool_t* out, int device) {
    return pass_on(NEXT_OF_RUNTIME(hipDeviceGetDefaultMemPool), out, device);
  }
  static hipError_t current_pool(hipMemPool_t* out, int device) {
    return pass_on(NEXT_OF_RUNTIME(hipDeviceGetMemPool), out, device);
  }
  static bool is_capturing(hipStream_t stream) {
    return is_captured(NEXT_OF_RUNTIME(hipStreamIsCapturing), stream);
  }
};

}  // namespace uvm::preload::hip
