// Queries about addresses. The numbers of memory types follow the version that the library reports.
#include <cstring>

#include "sim/hip/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::hip;

namespace {

constexpr int kNoDeviceOrdinal = -2;

// Calls whose types have no value for managed memory report managed memory as host memory.
bool is_host_type(const Allocation& allocation) {
  return allocation.is_host() || allocation.kind == MemoryKind::kManaged;
}

unsigned type_of(const Allocation& allocation) {
  const unsigned host = kVersion >= kNewNumbers ? 1 : 0;
  return is_host_type(allocation) ? host : host + 1;
}

template <class Value>
hipError_t write(void* out, Value value) {
  *static_cast<Value*>(out) = value;
  return hipSuccess;
}

// An attribute that does not apply to the address is set to zero, and the call fails.
template <class Value>
hipError_t write_none(void* out, Value none = {}) {
  *static_cast<Value*>(out) = none;
  return hipErrorInvalidValue;
}

hipError_t pointer_attribute(void* out, hipPointer_attribute attribute, hipDeviceptr_t address) {
  const auto allocation = machine().memory().find(address);
  switch (attribute) {
    case HIP_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return allocation ? write<unsigned>(out, type_of(*allocation)) : write_none<unsigned>(out);
    case HIP_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return allocation ? write(out, address) : write_none<hipDeviceptr_t>(out);
    case HIP_POINTER_ATTRIBUTE_HOST_POINTER:
      return allocation && is_host_type(*allocation) ? write(out, address)
                                                     : write_none<hipDeviceptr_t>(out);
    case HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return allocation ? write(out, false) : write_none<bool>(out);
    case HIP_POINTER_ATTRIBUTE_BUFFER_ID:
      return allocation ? write(out, static_cast<unsigned>(allocation->id))
                        : write_none<unsigned>(out);
    case HIP_POINTER_ATTRIBUTE_IS_MANAGED:  // one byte
      return allocation ? write(out, allocation->kind == MemoryKind::kManaged)
                        : write_none<bool>(out);
    case HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return allocation ? write(out, allocation->device) : write_none(out, kNoDeviceOrdinal);
    case HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return allocation ? write(out, reinterpret_cast<void*>(allocation->address))
                        : write_none<hipDeviceptr_t>(out);
    case HIP_POINTER_ATTRIBUTE_RANGE_SIZE:
      return allocation ? write(out, allocation->size_bytes) : write_none<size_t>(out);
    case HIP_POINTER_ATTRIBUTE_MAPPED:
      return write(out, allocation.has_value());
    default:
      return hipErrorNotSupported;
  }
}

}  // namespace

RT_API hipPointerGetAttributes(hipPointerAttribute_t* out, const void* address) {
  RT_ENTER_DEVICE;
  (void)device;
  if (out == nullptr || address == nullptr) return fail(hipErrorInvalidValue);
  std::memset(out, 0, sizeof *out);
  const auto allocation = machine().memory().find(address);
  if (!allocation) {
    // Versions before 6.0 have no type for unregistered memory.
    if (kVersion < kNewNumbers) return fail(hipErrorInvalidValue);
    out->device = kNoDeviceOrdinal;
    return hipSuccess;
  }
  const bool managed = allocation->kind == MemoryKind::kManaged;
  const bool named_managed = managed && kVersion >= kNewNumbers;
  out->type =
      named_managed ? hipMemoryTypeManaged : static_cast<hipMemoryType>(type_of(*allocation));
  out->device = allocation->device;
  out->devicePointer = const_cast<void*>(address);
  out->hostPointer = is_host_type(*allocation) ? const_cast<void*>(address) : nullptr;
  out->isManaged = managed ? 1 : 0;
  out->allocationFlags = allocation->flags;
  return hipSuccess;
}

RT_API hipPointerGetAttribute(void* out, hipPointer_attribute attribute, hipDeviceptr_t address) {
  RT_ENTER_DEVICE;
  (void)device;
  if (out == nullptr || address == nullptr) return fail(hipErrorInvalidValue);
  return fail(pointer_attribute(out, attribute, address));
}

// Succeeds even if attributes fail.
RT_API hipDrvPointerGetAttributes(unsigned count, hipPointer_attribute* attributes, void** outs,
                                  hipDeviceptr_t address) {
  RT_ENTER_DEVICE;
  (void)device;
  if (count == 0 || attributes == nullptr || outs == nullptr || address == nullptr)
    return fail(hipErrorInvalidValue);
  for (unsigned i = 0; i < count; ++i) (void)pointer_attribute(outs[i], attributes[i], address);
  return hipSuccess;
}

RT_API hipMemGetAddressRange(hipDeviceptr_t* base, size_t* bytes, hipDeviceptr_t address) {
  RT_ENTER_DEVICE;
  (void)device;
  const auto allocation = machine().memory().find(address);
  if (!allocation) return fail(hipErrorNotFound);
  if (base != nullptr) *base = reinterpret_cast<void*>(allocation->address);
  if (bytes != nullptr) *bytes = allocation->size_bytes;
  return hipSuccess;
}
