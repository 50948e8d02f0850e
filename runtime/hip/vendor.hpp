// The handwritten twin of runtime/cuda/vendor.hpp: all differences between HIP and CUDA except
// names. The build makes the other files of this folder from runtime/cuda (hipify/README.md).
//
// Functions here hold no state and may be called from any thread.
#pragma once

#include <hip/hip_runtime_api.h>

#include <string>

#include <uvmalloc/device_runtime.hpp>

// HIP 7.1 added calls that take a location structure. The older calls do the same, and every
// version has them.
#define UVMALLOC_HIP_BY_LOCATION 0

namespace uvm::hip {

using HintAddress = const void*;
using GetErrorName = const char*(hipError_t);
using CopyAsync = hipError_t(void*, const void*, size_t, hipMemcpyKind, hipStream_t);
using FindPages = hipError_t();

const char* error_name(GetErrorName* get_error_name, hipError_t result);
// Copies with hipMemcpyDefault, for which HIP looks each address up. HIP trusts any other copy kind
// even if managed pages have migrated since.
hipError_t copy_bytes(CopyAsync* copy_async, hipDeviceptr_t destination, hipDeviceptr_t source,
                      size_t size_bytes, hipStream_t stream);

// No version of HIP reports where a page is.
inline constexpr const char* kFindPages = nullptr;
inline hipError_t find_pages(FindPages*, hipDeviceptr_t, size_t, size_t, Place*) {
  return hipErrorNotSupported;
}

// This attribute means XNACK. hipDeviceAttributeConcurrentManagedAccess means only that the kernel
// driver has the calls for managed memory.
inline constexpr hipDeviceAttribute_t kMigratesOnFault = hipDeviceAttributePageableMemoryAccess;
inline constexpr const char* kWhyPagesStay =
    "its pages do not migrate on a fault: XNACK is off, or the device has none (HSA_XNACK=1 "
    "switches "
    "it on from MI200 on; RDNA has none)";
// A prefetch call of HIP returns only after the copy.
inline constexpr bool kPrefetchBlocks = true;
inline constexpr int kCoarseGrainAdvice = hipMemAdviseSetCoarseGrain;
inline constexpr bool kContextsAreMade = false;

// HIP has no attribute for this. If a HIP device shares the host's memory, it is integrated.
inline bool memory_is_host_node(hipError_t (*)(int*, hipDeviceAttribute_t, int), int) {
  return false;
}
// HIP 6.0 changed the numbers of hipMemoryType. So the version of HIP at run time decides, not the
// version of the headers.
inline constexpr int kNewMemoryTypes = 60000000;  // HIP 6.0, in the form of hipDriverGetVersion
constexpr unsigned host_memory_type(int driver_version) {
  return driver_version >= kNewMemoryTypes ? 1 : 0;
}
constexpr unsigned device_memory_type(int driver_version) {
  return host_memory_type(driver_version) + 1;
}
PointerKind kind_of_memory(unsigned type, int driver_version);

// HIP returns one of two errors, depending on whether the kernel driver is loaded.
bool means_no_device(hipError_t result);

struct DriverLibrary {
  void* handle = nullptr;
  std::string name;
};
// Prefers a library that the process has already mapped, because a second copy would not know the
// handles of the first.
DriverLibrary load_driver();

inline constexpr const char* kNoDriver =
    "libamdhip64.so could not be loaded (no ROCm on this machine?)";
inline constexpr const char* kTooOld = "it is older than HIP 5.0";

// Queries the HSA runtime below HIP, because HIP's first call, even a query, initialises HIP.
bool is_driver_initialized();

}  // namespace uvm::hip
