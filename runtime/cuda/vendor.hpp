// All differences between CUDA and HIP except names. runtime/hip/vendor.hpp is the handwritten twin
// of this file. The build makes the rest of runtime/hip from this folder (hipify/README.md).
//
// Functions here hold no state and may be called from any thread.
#pragma once

#include <cuda.h>

#include <string>

#include <uvmalloc/device_runtime.hpp>

// 1: prefer calls that take a location structure, if the driver has them (12.2 and later).
#define UVMALLOC_CUDA_BY_LOCATION 1

namespace uvm::cuda {

// HIP declares these types differently.
using HintAddress = CUdeviceptr;  // the type of an address in advice and prefetches
using GetErrorName = CUresult(CUresult, const char**);
using CopyAsync = CUresult(CUdeviceptr, CUdeviceptr, size_t, CUstream);
using FindPages = CUresult(CUdeviceptr, size_t, size_t, size_t, CUmemLocation*);

// Returns a string in static storage; "unknown error" if the driver does not know the code.
const char* error_name(GetErrorName* get_error_name, CUresult result);
// Copies between any two addresses that the device reaches, ordered by the stream.
CUresult copy_bytes(CopyAsync* copy_async, CUdeviceptr destination, CUdeviceptr source,
                    size_t size_bytes, CUstream stream);

// The call that reports where pages are (CUDA 13.4 and later); null: the interface has none.
inline constexpr const char* kFindPages = "cuMemGetLocationInfo";
// Gets a place for each `page_bytes` of the range, like DeviceRuntime::find_pages().
CUresult find_pages(FindPages* call, CUdeviceptr address, size_t size_bytes, size_t page_bytes,
                    Place* out);

// This attribute says whether the device's accesses to managed memory fault and migrate pages.
inline constexpr CUdevice_attribute kMigratesOnFault =
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
// The reason why pages do not migrate, for messages.
inline constexpr const char* kWhyPagesStay =
    "it cannot use managed memory concurrently with the host";
// Whether a prefetch call returns only after the copy.
inline constexpr bool kPrefetchBlocks = false;
// The advice that allow_coarse_grain() sends; 0: it sends none.
inline constexpr int kCoarseGrainAdvice = 0;
// Whether the first use of a device makes a context, which costs memory.
inline constexpr bool kContextsAreMade = true;

// Returns whether the device's memory is a NUMA node, which the host counts as its own memory.
bool memory_is_host_node(CUresult (*get_attribute)(int*, CUdevice_attribute, CUdevice),
                         CUdevice device);
// Returns the kind of an unmanaged pointer. `type` is the memory type from the driver;
// `driver_version` is the driver's own version number.
PointerKind kind_of_memory(unsigned type, int driver_version);

// Returns whether this result of the initialisation, or of counting devices, means "no device".
bool means_no_device(CUresult result);

// The driver's library and its name. The handle is null if the library cannot be loaded. The
// library stays loaded for the life of the process.
struct DriverLibrary {
  void* handle = nullptr;
  std::string name;
};
DriverLibrary load_driver();

// Messages if there is no driver, or if the driver lacks an entry point.
inline constexpr const char* kNoDriver =
    "libcuda.so.1 could not be loaded (no NVIDIA driver on this machine?)";
inline constexpr const char* kTooOld = "the driver is older than CUDA 12";

// Returns whether this process has initialised the driver. Loads and initialises nothing. Returns
// false in a forked child, even if its parent had initialised the driver.
bool is_driver_initialized();

}  // namespace uvm::cuda
