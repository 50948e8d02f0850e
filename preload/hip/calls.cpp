// The intercepted calls of HIP, with the handlers that only HIP needs.
#include "preload/define_calls.hpp"
#include "preload/hip/runtime.hpp"
#include "preload/observed_calls.hpp"
#include "preload/served_calls.hpp"
#include "preload/virtual_calls.hpp"
#include "runtime/hip/vendor.hpp"

namespace uvm::preload::hip {
namespace {

// Returns HIP's number for device memory at run time; the headers may define another number.
hipMemoryType device_type() noexcept {
  int version = 0;
  const bool is_known = pass_on(NEXT_OF_RUNTIME(hipDriverGetVersion), &version) == hipSuccess;
  if (!is_known) return hipMemoryTypeDevice;
  return static_cast<hipMemoryType>(uvm::hip::device_memory_type(version));
}

auto get_attributes(const auto& call, hipPointerAttribute_t* out, const void* address) {
  const hipError_t result = call.forward(out, asked_address(address));
  const auto block = result == hipSuccess ? find(address) : std::nullopt;
  if (block && hides_management(*block)) {
    out->type = device_type();
    out->isManaged = 0;
  }
  return result;
}

auto get_attribute(const auto& call, void* answer, hipPointer_attribute attribute,
                   hipDeviceptr_t address) {
  const hipError_t result = call.forward(answer, attribute, asked_address(address));
  const auto block = result == hipSuccess && answer != nullptr ? find(address) : std::nullopt;
  if (!block) return result;
  if (attribute == HIP_POINTER_ATTRIBUTE_IS_MANAGED && hides_management(*block)) {
    *static_cast<bool*>(answer) = false;
  } else if (attribute == HIP_POINTER_ATTRIBUTE_MEMORY_TYPE && hides_management(*block)) {
    *static_cast<unsigned*>(answer) = device_type();
  } else if (attribute == HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR) {
    *static_cast<void**>(answer) = block->base;
  } else if (attribute == HIP_POINTER_ATTRIBUTE_RANGE_SIZE) {
    *static_cast<std::size_t*>(answer) = block->size_bytes;
  }
  return result;
}

}  // namespace
}  // namespace uvm::preload::hip

using namespace uvm::preload;
using namespace uvm::preload::hip;

// NOLINTBEGIN(readability-identifier-naming)
// The header overloads these two functions for C++, so their types are written here.
UVMALLOC_DEFINE(Runtime, hipMallocAsync, hipError_t(void**, std::size_t, hipStream_t), false, 3,
                allocate_in_order)
UVMALLOC_DEFINE(Runtime, hipMallocFromPoolAsync,
                hipError_t(void**, std::size_t, hipMemPool_t, hipStream_t), false, 4,
                allocate_from_pool)
// NOLINTEND(readability-identifier-naming)

#define HIP(name, parameters, forms, handler) \
  UVMALLOC_DEFINE_##forms(Runtime, name, parameters, handler)
#include "preload/calls.def"
