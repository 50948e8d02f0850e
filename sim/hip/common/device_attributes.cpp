#include "sim/hip/common/device_attributes.hpp"

#include <hip/hip_deprecated.h>

#include <cstddef>
#include <cstdio>
#include <cstring>

#include "sim/engine/machine.hpp"
#include "sim/engine/settings.hpp"
#include "sim/hip/common/visible_devices.hpp"
#include "sim/hip/common/xnack.hpp"
#include "sim/hip/runtime/entry.hpp"

namespace uvmsim::hip {
namespace {

constexpr int kMajor = 9;  // gfx942
constexpr int kMinor = 4;
constexpr int kPciBusOfFirstDevice = 1;

int flag(bool value) {
  return value ? 1 : 0;
}

bool reaches_device_memory_from_host() {
  return machine().profile().shares_host_memory() || machine().profile().is_coherent();
}

std::size_t total_bytes(int ordinal) {
  return total_bytes_of(machine().memory().use(ordinal));
}

const char* architecture() {
  return is_xnack_on() ? "gfx942:sramecc+:xnack+" : "gfx942:sramecc+:xnack-";
}

// Writes the members that both layouts have.
template <class Properties>
void write_common(int ordinal, Properties* out) {
  const auto at = [ordinal](hipDeviceAttribute_t number) {
    return device_attribute(number, ordinal).value_or(0);
  };
  std::memset(out, 0, sizeof *out);
  std::snprintf(out->name, sizeof out->name, "%s", device_name());
  std::snprintf(out->gcnArchName, sizeof out->gcnArchName, "%s", architecture());
  out->totalGlobalMem = total_bytes(ordinal);
  out->sharedMemPerBlock = static_cast<std::size_t>(at(hipDeviceAttributeMaxSharedMemoryPerBlock));
  out->warpSize = at(hipDeviceAttributeWarpSize);
  out->maxThreadsPerBlock = at(hipDeviceAttributeMaxThreadsPerBlock);
  out->multiProcessorCount = at(hipDeviceAttributeMultiprocessorCount);
  out->major = kMajor;
  out->minor = kMinor;
  out->integrated = at(hipDeviceAttributeIntegrated);
  out->canMapHostMemory = 1;
  out->concurrentKernels = 1;
  out->pciBusID = pci_bus(ordinal);
  out->managedMemory = at(hipDeviceAttributeManagedMemory);
  out->concurrentManagedAccess = at(hipDeviceAttributeConcurrentManagedAccess);
  out->pageableMemoryAccess = at(hipDeviceAttributePageableMemoryAccess);
  out->directManagedMemAccessFromHost = at(hipDeviceAttributeDirectManagedMemAccessFromHost);
}

}  // namespace

const char* device_name() {
  return process_settings().machine.name.c_str();
}

std::optional<int> device_attribute(hipDeviceAttribute_t attribute, int ordinal) {
  switch (attribute) {
    case hipDeviceAttributeManagedMemory:
    case hipDeviceAttributeConcurrentManagedAccess:
      return 1;  // Linux's driver has the calls even if accesses do not fault
    case hipDeviceAttributePageableMemoryAccess:
      return flag(is_xnack_on());
    case hipDeviceAttributeDirectManagedMemAccessFromHost:
      return flag(reaches_device_memory_from_host());
    case hipDeviceAttributeIntegrated:
      return flag(machine().profile().shares_host_memory());
    case hipDeviceAttributeComputeCapabilityMajor:
      return kMajor;
    case hipDeviceAttributeComputeCapabilityMinor:
      return kMinor;
    case hipDeviceAttributePciBusId:
      return pci_bus(ordinal);
    case hipDeviceAttributeMaxThreadsPerBlock:
    case hipDeviceAttributeMaxBlockDimX:
    case hipDeviceAttributeMaxBlockDimY:
    case hipDeviceAttributeMaxBlockDimZ:
      return 1024;
    case hipDeviceAttributeMaxSharedMemoryPerBlock:
      return 64 << 10;
    case hipDeviceAttributeWarpSize:
      return 64;
    case hipDeviceAttributeMultiprocessorCount:
      return 304;
    case hipDeviceAttributeMaxThreadsPerMultiProcessor:
      return 2048;
    case hipDeviceAttributeConcurrentKernels:
    case hipDeviceAttributeCanMapHostMemory:
    case hipDeviceAttributeUnifiedAddressing:
    case hipDeviceAttributeMemoryPoolsSupported:
    case hipDeviceAttributeHostRegisterSupported:
      return 1;
    default:
      break;
  }
  const bool is_known = (attribute >= 0 && attribute < hipDeviceAttributeCudaCompatibleEnd) ||
                        (attribute >= hipDeviceAttributeAmdSpecificBegin &&
                         attribute < hipDeviceAttributeAmdSpecificEnd);
  return is_known ? std::optional(0) : std::nullopt;
}

int pci_bus(int ordinal) {
  return kPciBusOfFirstDevice + visible_devices()[static_cast<std::size_t>(ordinal)];
}

void device_uuid(int ordinal, char* out_bytes) {
  char text[17];
  std::snprintf(text, sizeof text, "uvmsim-device-%02x", static_cast<unsigned>(pci_bus(ordinal)));
  std::memcpy(out_bytes, text, 16);
}

void write_properties(int ordinal, hipDeviceProp_tR0600* out) {
  write_common(ordinal, out);
  device_uuid(ordinal, out->uuid.bytes);
  out->unifiedAddressing = 1;
  out->hostRegisterSupported = 1;
  out->memoryPoolsSupported = 1;
}

void write_old_properties(int ordinal, void* out) {
  static_assert(sizeof(hipDeviceProp_tR0000) == 792);
  static_assert(offsetof(hipDeviceProp_tR0000, pageableMemoryAccess) == 784);
  hipDeviceProp_tR0000 properties;
  write_common(ordinal, &properties);
  // In the old structure this member equals `integrated`; the attribute of the same name does not.
  properties.pageableMemoryAccessUsesHostPageTables = properties.integrated;
  std::memcpy(out, &properties, sizeof properties);
}

}  // namespace uvmsim::hip
