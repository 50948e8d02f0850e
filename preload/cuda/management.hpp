// The functions of NVML that uvmalloc intercepts, and their interface for the handlers
// (define_calls.hpp). NVML's header is not installed; types and numbers come from its
// documentation.
#pragma once

#include <cstdint>

// The names are those of NVML. NOLINTBEGIN(readability-identifier-naming)
extern "C" {

enum NvmlReturn : std::uint32_t {
  NVML_SUCCESS = 0,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
};
struct NvmlDevice;
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlMemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct NvmlWindow {
  unsigned long long total, free, used;
};
struct NvmlProcess {
  unsigned pid;
  unsigned long long used;
};
struct NvmlProcessV2 {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

NvmlReturn nvmlDeviceGetMemoryInfo(NvmlDevice*, NvmlMemory*);
NvmlReturn nvmlDeviceGetMemoryInfo_v2(NvmlDevice*, NvmlMemoryV2*);
NvmlReturn nvmlDeviceGetBAR1MemoryInfo(NvmlDevice*, NvmlWindow*);
NvmlReturn nvmlDeviceGetComputeRunningProcesses(NvmlDevice*, unsigned*, NvmlProcess*);
NvmlReturn nvmlDeviceGetComputeRunningProcesses_v2(NvmlDevice*, unsigned*, NvmlProcessV2*);
NvmlReturn nvmlDeviceGetComputeRunningProcesses_v3(NvmlDevice*, unsigned*, NvmlProcessV2*);

}  // extern "C"
// NOLINTEND(readability-identifier-naming)

namespace uvm::preload::cuda {

struct Management {};

}  // namespace uvm::preload::cuda
