// The twin of runtime/cuda/vendor.hpp: all that HIP does otherwise than CUDA beyond names. It is
// written by hand. The other files of this folder are made from runtime/cuda when uvmalloc is built
// (hipify/README.md).
//
// Functions here hold no state and may be called from any thread.
#pragma once

#include <hip/hip_runtime_api.h>

#include <uvmalloc/device_runtime.hpp>

// HIP 7.1 brought calls that name a location by a structure. The older form says the same and is in
// every version.
#define UVMALLOC_HIP_BY_LOCATION 0

namespace uvm::hip {

using HintAddress = const void*;
using GetErrorName = const char*(hipError_t);
using CopyAsync = hipError_t(void*, const void*, size_t, hipMemcpyKind, hipStream_t);

const char* error_name(GetErrorName* get_error_name, hipError_t result);
// Of the default kind: the runtime finds out what each address is. A named kind is trusted, and is
// wrong for managed pages that have migrated.
hipError_t copy_bytes(CopyAsync* copy_async, hipDeviceptr_t destination, hipDeviceptr_t source,
                      size_t size_bytes, hipStream_t stream);

// XNACK. hipDeviceAttributeConcurrentManagedAccess says only that the kernel driver has the calls
// for managed memory.
inline constexpr hipDeviceAttribute_t kMigratesOnFault = hipDeviceAttributePageableMemoryAccess;
inline constexpr const char* kWhyPagesStay =
    "its pages do not migrate on a fault: XNACK is off (HSA_XNACK=1 switches it on from MI200 on; "
    "RDNA has none)";
// The runtime waits for the prefetch before it returns.
inline constexpr bool kPrefetchBlocks = true;
inline constexpr int kCoarseGrainAdvice = hipMemAdviseSetCoarseGrain;
inline constexpr bool kContextsAreMade = false;

// HIP has no such attribute. Where memory is shared, the device is integrated.
inline bool memory_is_host_node(hipError_t (*)(int*, hipDeviceAttribute_t, int), int) {
  return false;
}
// The numbers of hipMemoryType changed in HIP 6.0, so the version that runs decides, not the
// headers'.
inline constexpr int kNewMemoryTypes = 60000000;  // HIP 6.0, as hipDriverGetVersion writes it
constexpr unsigned host_memory_type(int driver_version) {
  return driver_version >= kNewMemoryTypes ? 1 : 0;
}
constexpr unsigned device_memory_type(int driver_version) {
  return host_memory_type(driver_version) + 1;
}
PointerKind kind_of_memory(unsigned type, int driver_version);

// Which of the two is returned depends on whether the kernel driver is there.
bool means_no_device(hipError_t result);

struct DriverLibrary {
  void* handle = nullptr;
  const char* name = "";
};
// A library that the process has mapped already comes before any other: handles of one are unknown
// to another.
DriverLibrary load_driver();

inline constexpr const char* kNoDriver =
    "libamdhip64.so could not be loaded (no ROCm on this machine?)";
inline constexpr const char* kTooOld = "it is older than HIP 5.0";

// HIP initialises itself at its first call and cannot be asked. So the HSA runtime below it is
// asked.
bool is_driver_initialized();

}  // namespace uvm::hip
