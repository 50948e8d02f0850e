// Pinned memory under the names that only HIP has.
#include "sim/hip/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::hip;

namespace {

constexpr unsigned kFlags = hipHostMallocPortable | hipHostMallocMapped |
                            hipHostMallocWriteCombined | hipHostMallocNumaUser |
                            hipHostMallocCoherent | hipHostMallocNonCoherent;
constexpr unsigned kBothCoherent = hipHostMallocCoherent | hipHostMallocNonCoherent;

hipError_t allocate(int device, void** out, size_t bytes, unsigned flags) {
  if (out == nullptr || (flags & ~kFlags) != 0 || (flags & kBothCoherent) == kBothCoherent)
    return fail(hipErrorInvalidValue);
  if (bytes == 0) {
    *out = nullptr;
    return hipSuccess;
  }
  return finish(machine().memory().allocate_pinned(device, bytes, flags, out));
}

}  // namespace

RT_API hipHostMalloc(void** out, size_t bytes, unsigned flags) {
  RT_ENTER_DEVICE;
  return allocate(device, out, bytes, flags);
}

RT_API hipMemAllocHost(void** out, size_t bytes) {
  RT_ENTER_DEVICE;
  return allocate(device, out, bytes, 0);
}

RT_API hipHostFree(void* address) {
  RT_ENTER_DEVICE;
  (void)device;
  return address == nullptr ? hipSuccess : finish(free_of_host(address));
}
