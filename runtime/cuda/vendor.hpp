// All that CUDA and HIP do differently beyond names. runtime/hip/vendor.hpp is the twin of this
// file and is written by hand. The rest of runtime/hip is made from this folder when uvmalloc is
// built (hipify/README.md).
//
// Functions here hold no state and may be called from any thread.
#pragma once

#include <cuda.h>

#include <uvmalloc/device_runtime.hpp>

// Calls that name a location by a structure (driver 12.2 and later). They are preferred where the
// driver has them.
#define UVMALLOC_CUDA_BY_LOCATION 1

namespace uvm::cuda {

// Declared otherwise in HIP.
using HintAddress = CUdeviceptr;  // of the memory that advice and prefetches concern
using GetErrorName = CUresult(CUresult, const char**);
using CopyAsync = CUresult(CUdeviceptr, CUdeviceptr, size_t, CUstream);

// Static storage; "unknown error" for a number that the driver does not know.
const char* error_name(GetErrorName* get_error_name, CUresult result);
// A stream-ordered copy between any two addresses that the device reaches.
CUresult copy_bytes(CopyAsync* copy_async, CUdeviceptr destination, CUdeviceptr source,
                    size_t size_bytes, CUstream stream);

// The attribute that says whether the device's accesses to managed memory fault and migrate pages.
inline constexpr CUdevice_attribute kMigratesOnFault =
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
// What a user can do about a device where they do not.
inline constexpr const char* kWhyPagesStay =
    "it cannot use managed memory concurrently with the host";
// Whether a prefetch waits for its copy on the thread that asks for it.
inline constexpr bool kPrefetchBlocks = false;
// The advice that allow_coarse_grain() stands for; 0: there is none.
inline constexpr int kCoarseGrainAdvice = 0;
// Whether a context is made at the first use of a device and costs memory.
inline constexpr bool kContextsAreMade = true;

// Whether the device's memory is a NUMA node that the host counts as its own.
bool memory_is_host_node(CUresult (*get_attribute)(int*, CUdevice_attribute, CUdevice),
                         CUdevice device);
// `type` is the driver's memory type of memory that is not managed; `driver_version` is the
// driver's own number.
PointerKind kind_of_memory(unsigned type, int driver_version);

// Whether the result of initialisation or of counting means that there is no device.
bool means_no_device(CUresult result);

// The driver's library and its name; null where it cannot be loaded. It stays loaded for the life
// of the process.
struct DriverLibrary {
  void* handle = nullptr;
  const char* name = "";
};
DriverLibrary load_driver();

// Why a machine has no driver, and why one is not used that lacks an entry point.
inline constexpr const char* kNoDriver =
    "libcuda.so.1 could not be loaded (no NVIDIA driver on this machine?)";
inline constexpr const char* kTooOld = "the driver is older than CUDA 12";

// Whether the driver has been initialised in this process. Loads and initialises nothing. False in
// a forked child of a process where it had been.
bool is_driver_initialized();

}  // namespace uvm::cuda
