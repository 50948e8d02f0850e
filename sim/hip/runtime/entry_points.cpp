// Entry points by name: a lookup in this library, as in the modelled one.
#include <dlfcn.h>

#include <string>

#include "sim/hip/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::hip;

namespace {

// hipGetProcAddress takes versions as 100 * major + 10 * minor.
constexpr int kNewProperties = 600;

void* own_library() {
  static void* const library = [] {
    Dl_info self{};
    dladdr(reinterpret_cast<void*>(&own_library), &self);
    return dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  return library;
}

}  // namespace

RT_API hipGetProcAddress(const char* name, void** function, int version, uint64_t,
                         hipDriverProcAddressQueryResult* result) {
  UVMSIM_CALL_RECORD;
  if (const auto failure = call_record.enter()) return fail(static_cast<hipError_t>(*failure));
  if (name == nullptr || function == nullptr) return fail(hipErrorInvalidValue);
  std::string wanted = name;
  const bool has_two_layouts = wanted == "hipGetDeviceProperties" || wanted == "hipChooseDevice";
  if (has_two_layouts && version >= kNewProperties) wanted += "R0600";
  *function = dlsym(own_library(), wanted.c_str());
  if (result != nullptr)
    *result =
        *function != nullptr ? HIP_GET_PROC_ADDRESS_SUCCESS : HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function != nullptr ? hipSuccess : fail(hipErrorInvalidValue);
}
