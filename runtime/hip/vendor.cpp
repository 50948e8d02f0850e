#include "runtime/hip/vendor.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

namespace uvm::hip {
namespace {

// The major versions to look for, the newest first. Names with a version come first, because ROCm's
// wheels have no file with the bare name.
constexpr int kNewestMajor = 20;  // leaves room for future versions; the newest today is 7
constexpr int kOldestMajor = 5;
constexpr const char* kBareName = "libamdhip64.so";

// HSA_SYSTEM_INFO_VERSION_MAJOR. The HSA standard says that hsa_system_get_info() fails before
// hsa_init().
constexpr int kHsaVersionMajor = 0;
using HsaSystemGetInfo = unsigned(int attribute, void* value);

// Returns the path of the mapped object with a file name that begins with `start`, or "".
std::string path_of_mapped(std::string_view start) {
  struct Search {
    std::string_view start;
    std::string path;
  } search{start, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* context) {
        auto& wanted = *static_cast<Search*>(context);
        const std::string_view path = object->dlpi_name;
        const std::size_t slash = path.rfind('/');
        const std::string_view name =
            slash == std::string_view::npos ? path : path.substr(slash + 1);
        if (!name.starts_with(wanted.start)) return 0;
        wanted.path = path;
        return 1;
      },
      &search);
  return search.path;
}

void* handle_of_mapped(std::string_view start) {
  const std::string path = path_of_mapped(start);
  return path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
}

}  // namespace

const char* error_name(GetErrorName* get_error_name, hipError_t result) {
  const char* name = get_error_name(result);
  return name != nullptr ? name : "unknown error";
}

hipError_t copy_bytes(CopyAsync* copy_async, hipDeviceptr_t destination, hipDeviceptr_t source,
                      size_t size_bytes, hipStream_t stream) {
  return copy_async(destination, source, size_bytes, hipMemcpyDefault, stream);
}

PointerKind kind_of_memory(unsigned type, int driver_version) {
  return type == host_memory_type(driver_version)     ? PointerKind::kHost
         : type == device_memory_type(driver_version) ? PointerKind::kDevice
                                                      : PointerKind::kUnknown;
}

bool means_no_device(hipError_t result) {
  return result == hipErrorNoDevice || result == hipErrorInvalidDevice;
}

DriverLibrary load_driver() {
  if (void* mapped = handle_of_mapped(kBareName)) return {mapped, kBareName};
  for (int major = kNewestMajor; major >= kOldestMajor; --major) {
    const std::string name = std::string(kBareName) + "." + std::to_string(major);
    if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return {library, name};
  }
  return {dlopen(kBareName, RTLD_NOW | RTLD_LOCAL), kBareName};
}

bool is_driver_initialized() {
  if (path_of_mapped(kBareName).empty()) return false;
  void* hsa = handle_of_mapped("libhsa-runtime64.so");
  if (hsa == nullptr) return false;
  auto* get_info = reinterpret_cast<HsaSystemGetInfo*>(dlsym(hsa, "hsa_system_get_info"));
  std::uint16_t major = 0;
  const bool initialized = get_info != nullptr && get_info(kHsaVersionMajor, &major) == 0;
  dlclose(hsa);
  return initialized;
}

}  // namespace uvm::hip
