// The allocation calls of HIP that CUDA's runtime does not have: the older names of pinned memory,
// and those of HIP's copy of the driver interface.
#include <optional>

#include <uvmalloc/preload/hip/vendor.hpp>
#include <uvmalloc/preload/symbol_lookup.hpp>

using namespace uvm::preload;
using namespace uvm::preload::hip;

namespace {

// The only grain and placement that served pinned memory has.
constexpr unsigned kKnownHostFlags =
    hipHostMallocPortable | hipHostMallocMapped | hipHostMallocWriteCombined;

}  // namespace

// NOLINTBEGIN(readability-identifier-naming)

UVMALLOC_INTERPOSE hipError_t hipHostMalloc(void** out, std::size_t size_bytes, unsigned flags) {
  if (((flags & ~kKnownHostFlags) == 0 || leave(UVMALLOC_CALL(hipHostMalloc))) &&
      serve(UVMALLOC_ASKED(hipHostMalloc, kPinned, device_of_runtime), out, size_bytes)) {
    return hipSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(hipHostMalloc), out, size_bytes, flags);
}

UVMALLOC_INTERPOSE hipError_t hipMemAllocHost(void** out, std::size_t size_bytes) {
  if (serve(UVMALLOC_ASKED(hipMemAllocHost, kPinned, device_of_runtime), out, size_bytes)) {
    return hipSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(hipMemAllocHost), out, size_bytes);
}

UVMALLOC_INTERPOSE hipError_t hipHostFree(void* address) {
  return release(address, kFreesOfHost, NEXT_OF_RUNTIME(hipHostFree));
}

UVMALLOC_INTERPOSE hipError_t hipMemAllocPitch(hipDeviceptr_t* out, std::size_t* pitch_bytes,
                                               std::size_t width_bytes, std::size_t height,
                                               unsigned element_bytes) {
  if (serve_rows(UVMALLOC_ASKED(hipMemAllocPitch, kDevice, device_of_runtime), out, pitch_bytes,
                 width_bytes, height)) {
    return hipSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(hipMemAllocPitch), out, pitch_bytes, width_bytes, height,
                 element_bytes);
}

// HIP knows spans, not the blocks in them.
UVMALLOC_INTERPOSE hipError_t hipMemGetAddressRange(hipDeviceptr_t* base, std::size_t* size_bytes,
                                                    hipDeviceptr_t address) {
  if (const auto range = find(address)) {
    if (base != nullptr) *base = range->base;
    if (size_bytes != nullptr) *size_bytes = range->size_bytes;
    return hipSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(hipMemGetAddressRange), base, size_bytes, address);
}

UVMALLOC_INTERPOSE hipError_t hipPointerGetAttributes(hipPointerAttribute_t* out,
                                                      const void* address) {
  const hipError_t result = pass_on(NEXT_OF_RUNTIME(hipPointerGetAttributes), out, address);
  const auto block = result == hipSuccess ? find(address) : std::nullopt;
  if (block && hides_management(*block)) {
    out->type = hipMemoryTypeDevice;
    out->isManaged = 0;
  }
  return result;
}

UVMALLOC_INTERPOSE hipError_t hipPointerGetAttribute(void* answer, hipPointer_attribute attribute,
                                                     hipDeviceptr_t address) {
  const hipError_t result =
      pass_on(NEXT_OF_RUNTIME(hipPointerGetAttribute), answer, attribute, address);
  const auto block = result == hipSuccess && answer != nullptr ? find(address) : std::nullopt;
  if (!block) return result;
  if (attribute == HIP_POINTER_ATTRIBUTE_IS_MANAGED && hides_management(*block)) {
    *static_cast<bool*>(answer) = false;
  } else if (attribute == HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR) {
    *static_cast<void**>(answer) = block->base;
  } else if (attribute == HIP_POINTER_ATTRIBUTE_RANGE_SIZE) {
    *static_cast<std::size_t*>(answer) = block->size_bytes;
  }
  return result;
}

UVMALLOC_INTERPOSE hipError_t hipGetProcAddress(const char* name, void** out, int version,
                                                std::uint64_t flags,
                                                hipDriverProcAddressQueryResult* status) {
  const hipError_t result =
      pass_on(NEXT_OF_RUNTIME(hipGetProcAddress), name, out, version, flags, status);
  put_ours_for(__builtin_return_address(0), result, out);
  return result;
}

// NOLINTEND(readability-identifier-naming)
