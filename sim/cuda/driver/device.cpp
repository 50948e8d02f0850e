// Initialisation and devices.
#include <cstdio>
#include <cstring>

#include "sim/cuda/common/device_attributes.hpp"
#include "sim/cuda/common/version.hpp"
#include "sim/cuda/driver/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

int attribute(int number, int device) {
  return device_attribute(number, device).value_or(0);
}

}  // namespace

CU_API cuInit(unsigned flags) {
  CU_ENTER_ANYTIME;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (visible_device_count() == 0) return CUDA_ERROR_NO_DEVICE;
  return machine().memory().has_address_space() ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API cuDriverGetVersion(int* version) {
  UVMSIM_CALL_RECORD;
  if (const auto failure = call_record.enter()) return static_cast<CUresult>(*failure);
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = driver_version();
  return CUDA_SUCCESS;
}

CU_API cuDeviceGetCount(int* count) {
  CU_ENTER;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = visible_device_count();
  return CUDA_SUCCESS;
}

CU_API cuDeviceGet(CUdevice* device, int ordinal) {
  CU_ENTER;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_visible(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CU_API cuDeviceGetName(char* name, int size, CUdevice device) {
  CU_ENTER;
  if (name == nullptr || size <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_visible(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<std::size_t>(size), "%s", device_name());
  return CUDA_SUCCESS;
}

CU_API cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  CU_ENTER;
  if (!is_visible(device)) return CUDA_ERROR_INVALID_DEVICE;
  device_uuid(device, uuid->bytes);
  return CUDA_SUCCESS;
}

CU_API cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  CU_ENTER;
  if (!is_visible(device)) return CUDA_ERROR_INVALID_DEVICE;
  device_uuid(device, uuid->bytes);
  return CUDA_SUCCESS;
}

CU_API cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  CU_ENTER;
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_visible(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = machine().memory().use(device).capacity_bytes;
  return CUDA_SUCCESS;
}

CU_API cuDeviceGetAttribute(int* value, CUdevice_attribute number, CUdevice device) {
  CU_ENTER;
  if (!is_visible(device)) return CUDA_ERROR_INVALID_DEVICE;
  const auto found = device_attribute(number, device);
  if (!found || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *value = *found;
  return CUDA_SUCCESS;
}

CU_API cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  CU_ENTER;
  if (!is_visible(device)) return CUDA_ERROR_INVALID_DEVICE;
  *major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  *minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  return CUDA_SUCCESS;
}

CU_API cuDeviceGetPCIBusId(char* text, int size, CUdevice device) {
  CU_ENTER;
  if (!is_visible(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (text == nullptr || size <= 0) return CUDA_ERROR_INVALID_VALUE;
  const int written = std::snprintf(text, static_cast<std::size_t>(size), "%04x:%02x:%02x.0",
                                    attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, device),
                                    attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device),
                                    attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, device));
  return written < size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  CU_ENTER;
  if (!is_visible(device) || !is_visible(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer ? 1 : 0;
  return CUDA_SUCCESS;
}

CU_API cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute number, CUdevice device,
                               CUdevice peer) {
  CU_ENTER;
  if (!is_visible(device) || !is_visible(peer) || device == peer) return CUDA_ERROR_INVALID_DEVICE;
  const bool has_it = number == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED ||
                      (number == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED &&
                       machine().profile().has_fast_peer_links());
  *value = has_it ? 1 : 0;
  return CUDA_SUCCESS;
}
