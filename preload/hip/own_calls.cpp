// The allocation calls of HIP that CUDA's runtime does not have: the older names of pinned memory,
// and those of HIP's copy of the driver interface.
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
  if (const auto answer = take_back<hipError_t>(address)) return *answer;
  return pass_on(NEXT_OF_RUNTIME(hipHostFree), address);
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

UVMALLOC_INTERPOSE hipError_t hipHostGetFlags(unsigned* flags, void* address) {
  if (flags != nullptr && is_pinned(address)) {
    *flags = hipHostMallocPortable | hipHostMallocMapped;
    return hipSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(hipHostGetFlags), flags, address);
}

UVMALLOC_INTERPOSE hipError_t hipPointerGetAttributes(hipPointerAttribute_t* out,
                                                      const void* address) {
  const hipError_t result = pass_on(NEXT_OF_RUNTIME(hipPointerGetAttributes), out, address);
  if (result == hipSuccess && hides_management(address)) {
    out->type = hipMemoryTypeDevice;
    out->isManaged = 0;
  }
  return result;
}

UVMALLOC_INTERPOSE hipError_t hipPointerGetAttribute(void* answer, hipPointer_attribute attribute,
                                                     hipDeviceptr_t address) {
  const hipError_t result =
      pass_on(NEXT_OF_RUNTIME(hipPointerGetAttribute), answer, attribute, address);
  if (result == hipSuccess && attribute == HIP_POINTER_ATTRIBUTE_IS_MANAGED &&
      hides_management(address)) {
    *static_cast<bool*>(answer) = false;
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
