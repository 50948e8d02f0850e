// A stand-in for libhsa-runtime64.so.1, HIP's base library. Its only state is whether the library
// is initialised. The functions and numbers are those of the HSA standard.
#include <atomic>
#include <cstdint>

#include <uvmalloc/sim/uvmsim.h>

#define HSA_API extern "C" __attribute__((visibility("default"))) unsigned

namespace {

constexpr unsigned kSuccess = 0;
constexpr unsigned kInvalidArgument = 0x1001;
constexpr unsigned kNotInitialized = 0x100B;
constexpr int kVersionMajor = 0;
constexpr int kVersionMinor = 1;

std::atomic<int> uses{0};

}  // namespace

HSA_API hsa_init() {
  ++uses;
  return kSuccess;
}

HSA_API hsa_shut_down() {
  int before = uses.load();
  while (before > 0) {
    if (uses.compare_exchange_weak(before, before - 1)) return kSuccess;
  }
  return kNotInitialized;
}

HSA_API hsa_system_get_info(int attribute, void* value) {
  if (uses == 0 || uvmsim_is_forked_child() != 0) return kNotInitialized;
  if (value == nullptr || (attribute != kVersionMajor && attribute != kVersionMinor))
    return kInvalidArgument;
  *static_cast<std::uint16_t*>(value) = 1;
  return kSuccess;
}
