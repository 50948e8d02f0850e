#include "runtime/cuda/vendor.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <vector>

namespace uvm::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

}  // namespace

const char* error_name(GetErrorName* get_error_name, CUresult result) {
  const char* name = nullptr;
  return get_error_name(result, &name) == CUDA_SUCCESS && name != nullptr ? name : "unknown error";
}

CUresult find_pages(FindPages* call, CUdeviceptr address, size_t size_bytes, size_t page_bytes,
                    Place* out) {
  std::vector<CUmemLocation> found((size_bytes + page_bytes - 1) / page_bytes);
  const CUresult result = call(address, size_bytes, page_bytes, page_bytes, found.data());
  if (result != CUDA_SUCCESS) return result;
  std::ranges::transform(found, out, [](const CUmemLocation& location) {
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) return Place::device(location.id);
    // CUDA 13.4 names type 0 "none". The other types mean the host.
    return location.type == CU_MEM_LOCATION_TYPE_INVALID ? Place::nowhere() : Place::host();
  });
  return result;
}

CUresult copy_bytes(CopyAsync* copy_async, CUdeviceptr destination, CUdeviceptr source,
                    size_t size_bytes, CUstream stream) {
  return copy_async(destination, source, size_bytes, stream);
}

bool memory_is_host_node(CUresult (*get_attribute)(int*, CUdevice_attribute, CUdevice),
                         CUdevice device) {
  int value = 0;
  return get_attribute(&value, CU_DEVICE_ATTRIBUTE_NUMA_CONFIG, device) == CUDA_SUCCESS &&
         value == CU_DEVICE_NUMA_CONFIG_NUMA_NODE;
}

PointerKind kind_of_memory(unsigned type, int /*driver_version*/) {
  return type == CU_MEMORYTYPE_DEVICE ? PointerKind::kDevice
         : type == CU_MEMORYTYPE_HOST ? PointerKind::kHost
                                      : PointerKind::kUnknown;
}

bool means_no_device(CUresult result) {
  return result == CUDA_ERROR_NO_DEVICE;
}

DriverLibrary load_driver() {
  return {dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL), kLibrary};
}

bool is_driver_initialized() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return false;
  const auto count_devices =
      reinterpret_cast<CUresult (*)(int*)>(dlsym(library, "cuDeviceGetCount"));
  int devices = 0;
  // Before cuInit every entry point returns CUDA_ERROR_NOT_INITIALIZED.
  const bool initialized = count_devices != nullptr && count_devices(&devices) == CUDA_SUCCESS;
  dlclose(library);
  return initialized;
}

}  // namespace uvm::cuda
