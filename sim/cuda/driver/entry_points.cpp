// Looks up entry points by name.
#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <string_view>

#include "sim/cuda/common/version.hpp"
#include "sim/cuda/driver/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

// Generated with the stubs: every exported name in the order of strcmp.
extern "C" {
struct EntryPoint {
  const char* name;
  void (*address)();
  int implemented;
};
extern const EntryPoint uvmsim_driver_entry_points[];
extern const unsigned long uvmsim_driver_entry_point_count;
}

namespace {

constexpr unsigned long long kPerThreadDefaultStream =
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

const EntryPoint* find(std::string_view name) {
  const EntryPoint* begin = uvmsim_driver_entry_points;
  const EntryPoint* end = begin + uvmsim_driver_entry_point_count;
  const EntryPoint* it = std::lower_bound(
      begin, end, name,
      [](const EntryPoint& entry, std::string_view wanted) { return entry.name < wanted; });
  return it != end && name == it->name ? it : nullptr;
}

struct Introduction {
  std::string_view name;
  int version;
};

constexpr auto kIntroductions = std::to_array<Introduction>({
#include "sim/cuda/driver/introductions.inc"
});

bool existed(std::string_view name, int version) {
  const auto* it = std::find_if(kIntroductions.begin(), kIntroductions.end(),
                                [&](const Introduction& entry) { return entry.name == name; });
  return it == kIntroductions.end() || it->version <= version;
}

// From this version on, cuGraphInstantiate means cuGraphInstantiateWithFlags.
constexpr int kNewGraphInstantiate = 12000;

// Returns the newest implemented form that existed in `version`. If none is implemented, returns
// the newest form that existed.
const EntryPoint* resolve(const std::string& name, int version) {
  if (name == "cuGraphInstantiate" && version >= kNewGraphInstantiate)
    return find("cuGraphInstantiateWithFlags");
  const EntryPoint* unimplemented = nullptr;
  for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
    const std::string candidate = name + suffix;
    const EntryPoint* entry = find(candidate);
    if (entry == nullptr || !existed(candidate, version)) continue;
    if (entry->implemented != 0) return entry;
    if (unimplemented == nullptr) unimplemented = entry;
  }
  return unimplemented;
}

const EntryPoint* resolve_for_thread_stream(const std::string& name, int version) {
  for (const char* form : {"_v3", "_v2", ""}) {
    if (!existed(name + form, version)) continue;
    for (const char* suffix : {"_ptsz", "_ptds"}) {
      const EntryPoint* entry = find(name + form + suffix);
      if (entry != nullptr && entry->implemented != 0) return entry;
    }
  }
  return resolve(name, version);
}

}  // namespace

// For the runtime library in the same folder. Writes the address, and returns a
// CUdriverProcAddressQueryResult.
extern "C" UVMSIM_EXPORT int uvmsim_cuda_find_entry_point(const char* name, int version,
                                                          unsigned long long flags, void** out) {
  const int known_version = std::min(version, driver_version());
  const EntryPoint* entry = (flags & kPerThreadDefaultStream) != 0
                                ? resolve_for_thread_stream(name, known_version)
                                : resolve(name, known_version);
  *out = entry == nullptr ? nullptr : reinterpret_cast<void*>(entry->address);
  return entry != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
}

CU_API cuGetProcAddress_v2(const char* name, void** out, int version, cuuint64_t flags,
                           CUdriverProcAddressQueryResult* result) {
  CU_ENTER_ANYTIME;
  if (name == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int found = uvmsim_cuda_find_entry_point(name, version, flags, out);
  if (result != nullptr) *result = static_cast<CUdriverProcAddressQueryResult>(found);
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CU_API cuGetProcAddress(const char* name, void** out, int version, cuuint64_t flags) {
  CU_ENTER_ANYTIME;
  if (name == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  uvmsim_cuda_find_entry_point(name, version, flags, out);
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
