// Devices: enumeration, choice, attributes, peers.
#include <cstdio>
#include <cstring>

#include "sim/engine/thread_context.hpp"
#include "sim/hip/common/device_attributes.hpp"
#include "sim/hip/common/visible_devices.hpp"
#include "sim/hip/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::hip;

namespace {

unsigned device_flags = 0;

template <class Answer>
hipError_t answer_version(CallRecord& call_record, int* version, Answer answer) {
  if (const auto failure = call_record.enter()) return fail(static_cast<hipError_t>(*failure));
  if (version == nullptr) return fail(hipErrorInvalidValue);
  *version = answer;
  return hipSuccess;
}

}  // namespace

RT_API hipGetDeviceCount(int* count) {
  RT_ENTER;
  if (count == nullptr) return fail(hipErrorInvalidValue);
  *count = visible_device_count();
  return *count > 0 ? hipSuccess : fail(hipErrorNoDevice);
}

RT_API hipGetDevice(int* out_device) {
  RT_ENTER_DEVICE;
  if (out_device == nullptr) return fail(hipErrorInvalidValue);
  *out_device = device;
  return hipSuccess;
}

RT_API hipSetDevice(int device) {
  RT_ENTER;
  if (visible_device_count() == 0) return fail(hipErrorNoDevice);
  if (!is_visible(device)) return fail(hipErrorInvalidDevice);
  ThreadContext::current().choose_device(device);
  return hipSuccess;
}

RT_API hipSetDeviceFlags(unsigned flags) {
  RT_ENTER_DEVICE;
  (void)device;
  device_flags = flags;
  return hipSuccess;
}

RT_API hipGetDeviceFlags(unsigned* flags) {
  RT_ENTER_DEVICE;
  (void)device;
  if (flags == nullptr) return fail(hipErrorInvalidValue);
  *flags = device_flags;
  return hipSuccess;
}

RT_API hipDeviceReset() {
  RT_ENTER_DEVICE;
  PrimaryContexts::reset(device);
  return hipSuccess;
}

RT_API hipDeviceSynchronize() {
  RT_ENTER_DEVICE;
  return finish(machine().streams().wait_for_device(device));
}

// ---- versions, available without a device and in a forked child too

RT_API hipDriverGetVersion(int* version) {
  UVMSIM_CALL_RECORD;
  return answer_version(call_record, version, kVersion);
}

RT_API hipRuntimeGetVersion(int* version) {
  UVMSIM_CALL_RECORD;
  return answer_version(call_record, version, kVersion);
}

// ---- properties

RT_API hipDeviceGet(hipDevice_t* device, int ordinal) {
  RT_ENTER;
  if (device == nullptr) return fail(hipErrorInvalidValue);
  if (!is_visible(ordinal)) return fail(hipErrorInvalidDevice);
  *device = ordinal;
  return hipSuccess;
}

RT_API hipDeviceGetName(char* name, int size, hipDevice_t device) {
  RT_ENTER;
  if (!is_visible(device)) return fail(hipErrorInvalidDevice);
  if (name == nullptr || size <= 0) return fail(hipErrorInvalidValue);
  std::snprintf(name, static_cast<std::size_t>(size), "%s", device_name());
  return hipSuccess;
}

RT_API hipDeviceGetUuid(hipUUID* uuid, hipDevice_t device) {
  RT_ENTER;
  if (uuid == nullptr) return fail(hipErrorInvalidValue);
  if (!is_visible(device)) return fail(hipErrorInvalidDevice);
  device_uuid(device, uuid->bytes);
  return hipSuccess;
}

RT_API hipDeviceTotalMem(size_t* bytes, hipDevice_t device) {
  RT_ENTER;
  if (bytes == nullptr) return fail(hipErrorInvalidValue);
  if (!is_visible(device)) return fail(hipErrorInvalidDevice);
  *bytes = total_bytes_of(machine().memory().use(device));
  return hipSuccess;
}

RT_API hipDeviceGetAttribute(int* value, hipDeviceAttribute_t number, int device) {
  RT_ENTER;
  if (value == nullptr) return fail(hipErrorInvalidValue);
  if (!is_visible(device)) return fail(hipErrorInvalidDevice);
  const auto found = device_attribute(number, device);
  if (!found) return fail(hipErrorInvalidValue);
  *value = *found;
  return hipSuccess;
}

RT_API hipDeviceComputeCapability(int* major, int* minor, hipDevice_t device) {
  RT_ENTER;
  if (major == nullptr || minor == nullptr) return fail(hipErrorInvalidValue);
  if (!is_visible(device)) return fail(hipErrorInvalidDevice);
  *major = device_attribute(hipDeviceAttributeComputeCapabilityMajor, device).value_or(0);
  *minor = device_attribute(hipDeviceAttributeComputeCapabilityMinor, device).value_or(0);
  return hipSuccess;
}

namespace {

// `write` fills in a device's properties in one of the layouts.
template <class Properties>
hipError_t answer_properties(void (*write)(int, Properties*), Properties* properties, int device) {
  if (properties == nullptr) return fail(hipErrorInvalidValue);
  if (!is_visible(device)) return fail(hipErrorInvalidDevice);
  write(device, properties);
  return hipSuccess;
}

}  // namespace

// The plain name keeps the old layout for programs that were built before HIP 6.0.
#undef hipGetDeviceProperties
RT_API hipGetDeviceProperties(void* properties, int device) {
  RT_ENTER;
  return answer_properties(write_old_properties, properties, device);
}

RT_API hipGetDevicePropertiesR0000(void* properties, int device) {
  RT_ENTER;
  return answer_properties(write_old_properties, properties, device);
}

RT_API hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* properties, int device) {
  RT_ENTER;
  return answer_properties(write_properties, properties, device);
}

RT_API hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
  RT_ENTER;
  if (least != nullptr) *least = kLeastPriority;
  if (greatest != nullptr) *greatest = kGreatestPriority;
  return hipSuccess;
}

RT_API hipDeviceGetPCIBusId(char* text, int size, int device) {
  RT_ENTER;
  if (text == nullptr || size <= 0) return fail(hipErrorInvalidValue);
  if (!is_visible(device)) return fail(hipErrorInvalidDevice);
  const int written = std::snprintf(text, static_cast<std::size_t>(size), "%04x:%02x:%02x.0", 0,
                                    static_cast<unsigned>(pci_bus(device)), 0);
  return written < size ? hipSuccess : fail(hipErrorInvalidValue);
}

// ---- peers

RT_API hipDeviceCanAccessPeer(int* can, int device, int peer) {
  RT_ENTER;
  if (can == nullptr) return fail(hipErrorInvalidValue);
  if (!is_visible(device) || !is_visible(peer)) return fail(hipErrorInvalidDevice);
  *can = device != peer ? 1 : 0;
  return hipSuccess;
}

RT_API hipDeviceEnablePeerAccess(int peer, unsigned flags) {
  RT_ENTER_DEVICE;
  if (flags != 0) return fail(hipErrorInvalidValue);
  if (!is_visible(peer)) return fail(hipErrorInvalidDevice);
  return finish(machine().memory().enable_peer_access(device, peer));
}

RT_API hipDeviceDisablePeerAccess(int peer) {
  RT_ENTER_DEVICE;
  if (!is_visible(peer)) return fail(hipErrorInvalidDevice);
  return finish(machine().memory().disable_peer_access(device, peer));
}
