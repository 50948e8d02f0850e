// Devices: enumeration, choice, properties, limits, peers.
#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>

#include "sim/api/kernel_plugin.hpp"
#include "sim/cuda/common/device_attributes.hpp"
#include "sim/cuda/common/version.hpp"
#include "sim/cuda/common/visible_devices.hpp"
#include "sim/cuda/runtime/entry.hpp"
#include "sim/engine/thread_context.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

constexpr std::size_t kDefaultLimitBytes = 1024;

int attribute(int number, int device) {
  return device_attribute(number, device).value_or(0);
}

std::string pci_bus_id(int device) {
  char text[16];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.0",
                attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, device),
                attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device),
                attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, device));
  return text;
}

void fill_limits(cudaDeviceProp* out, int device) {
  const auto at = [device](int number) { return attribute(number, device); };
  out->sharedMemPerBlock =
      static_cast<std::size_t>(at(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK));
  out->sharedMemPerBlockOptin =
      static_cast<std::size_t>(at(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
  out->sharedMemPerMultiprocessor =
      static_cast<std::size_t>(at(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR));
  out->reservedSharedMemPerBlock =
      static_cast<std::size_t>(at(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK));
  out->totalConstMem = static_cast<std::size_t>(at(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY));
  out->memPitch = static_cast<std::size_t>(at(CU_DEVICE_ATTRIBUTE_MAX_PITCH));
  out->regsPerBlock = at(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
  out->regsPerMultiprocessor = at(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  out->warpSize = at(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  out->maxThreadsPerBlock = at(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  for (int axis = 0; axis < 3; ++axis) {
    out->maxThreadsDim[axis] = at(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + axis);
    out->maxGridSize[axis] = at(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + axis);
  }
  out->maxThreadsPerMultiProcessor = at(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  out->maxBlocksPerMultiProcessor = at(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
  out->multiProcessorCount = at(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  out->textureAlignment = static_cast<std::size_t>(at(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT));
  out->texturePitchAlignment =
      static_cast<std::size_t>(at(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT));
  out->surfaceAlignment = static_cast<std::size_t>(at(CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT));
  out->memoryBusWidth = at(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
  out->l2CacheSize = at(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  out->asyncEngineCount = at(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
}

void fill_features(cudaDeviceProp* out, int device) {
  const auto at = [device](int number) { return attribute(number, device); };
  out->major = at(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  out->minor = at(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  out->integrated = at(CU_DEVICE_ATTRIBUTE_INTEGRATED);
  out->canMapHostMemory = at(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
  out->concurrentKernels = at(CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS);
  out->ECCEnabled = at(CU_DEVICE_ATTRIBUTE_ECC_ENABLED);
  out->pciBusID = at(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
  out->pciDeviceID = at(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
  out->pciDomainID = at(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
  out->unifiedAddressing = at(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
  out->streamPrioritiesSupported = at(CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED);
  out->globalL1CacheSupported = at(CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED);
  out->localL1CacheSupported = at(CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED);
  out->managedMemory = at(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
  out->concurrentManagedAccess = at(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
  out->pageableMemoryAccess = at(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
  out->pageableMemoryAccessUsesHostPageTables =
      at(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
  out->directManagedMemAccessFromHost = at(CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST);
  out->hostNativeAtomicSupported = at(CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED);
  out->computePreemptionSupported = at(CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED);
  out->canUseHostPointerForRegisteredMem =
      at(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
  out->cooperativeLaunch = at(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH);
  out->hostRegisterSupported = at(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
  out->memoryPoolsSupported = at(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
  out->clusterLaunch = at(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH);
  out->deviceNumaId = at(CU_DEVICE_ATTRIBUTE_NUMA_ID);
  out->hostNumaId = at(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
}

std::atomic<unsigned> device_flags{0};

bool is_limit(cudaLimit limit) {
  return limit >= cudaLimitStackSize && limit <= cudaLimitPersistingL2CacheSize;
}

}  // namespace

RT_API cudaGetDeviceCount(int* count) {
  RT_ENTER;
  poll_kernel_plugin();
  if (count == nullptr) return fail(cudaErrorInvalidValue);
  *count = visible_device_count();
  return *count > 0 ? cudaSuccess : fail(cudaErrorNoDevice);
}

RT_API cudaGetDevice(int* device) {
  RT_ENTER;
  poll_kernel_plugin();
  if (device == nullptr) return fail(cudaErrorInvalidValue);
  if (visible_device_count() == 0) return fail(cudaErrorNoDevice);
  *device = ThreadContext::current().device();
  return cudaSuccess;
}

RT_API cudaSetDevice(int device) {
  RT_ENTER;
  poll_kernel_plugin();
  if (visible_device_count() == 0) return fail(cudaErrorNoDevice);
  if (!is_visible(device)) return fail(cudaErrorInvalidDevice);
  ThreadContext::current().choose_device(device);
  return cudaSuccess;
}

RT_API cudaInitDevice(int device, unsigned, unsigned) {
  RT_ENTER;
  if (!is_visible(device)) return fail(cudaErrorInvalidDevice);
  PrimaryContexts::activate(device);
  return cudaSuccess;
}

RT_API cudaSetValidDevices(int* devices, int count) {
  RT_ENTER;
  for (int i = 0; i < count; ++i) {
    if (!is_visible(devices[i])) return fail(cudaErrorInvalidDevice);
  }
  return cudaSuccess;
}

RT_API cudaChooseDevice(int* device, const cudaDeviceProp*) {
  RT_ENTER;
  if (device == nullptr) return fail(cudaErrorInvalidValue);
  if (visible_device_count() == 0) return fail(cudaErrorNoDevice);
  *device = 0;
  return cudaSuccess;
}

RT_API cudaSetDeviceFlags(unsigned flags) {
  RT_ENTER;
  if ((flags & ~unsigned{cudaDeviceMask}) != 0) return fail(cudaErrorInvalidValue);
  device_flags = flags;
  return cudaSuccess;
}

RT_API cudaGetDeviceFlags(unsigned* flags) {
  RT_ENTER;
  if (flags == nullptr) return fail(cudaErrorInvalidValue);
  *flags = device_flags | cudaDeviceMapHost;
  return cudaSuccess;
}

RT_API cudaDeviceReset() {
  RT_ENTER_DEVICE;
  PrimaryContexts::reset(device);
  return cudaSuccess;
}

RT_API cudaDeviceSynchronize() {
  RT_ENTER_DEVICE;
  return finish(machine().streams().wait_for_device(device));
}

// ---- versions, available in a forked child too

RT_API cudaDriverGetVersion(int* version) {
  UVMSIM_CALL_RECORD;
  if (const auto failure = call_record.enter()) return fail(static_cast<cudaError_t>(*failure));
  if (version == nullptr) return fail(cudaErrorInvalidValue);
  *version = driver_version();
  return cudaSuccess;
}

RT_API cudaRuntimeGetVersion(int* version) {
  UVMSIM_CALL_RECORD;
  if (const auto failure = call_record.enter()) return fail(static_cast<cudaError_t>(*failure));
  if (version == nullptr) return fail(cudaErrorInvalidValue);
  *version = kRuntimeVersion;
  return cudaSuccess;
}

// ---- properties

RT_API cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  RT_ENTER;
  poll_kernel_plugin();
  if (properties == nullptr) return fail(cudaErrorInvalidValue);
  if (!is_visible(device)) return fail(cudaErrorInvalidDevice);
  std::memset(properties, 0, sizeof *properties);
  std::snprintf(properties->name, sizeof properties->name, "%s", device_name());
  device_uuid(device, properties->uuid.bytes);
  properties->totalGlobalMem = machine().memory().use(device).capacity_bytes;
  fill_limits(properties, device);
  fill_features(properties, device);
  return cudaSuccess;
}

RT_API cudaDeviceGetAttribute(int* value, cudaDeviceAttr number, int device) {
  RT_ENTER;
  if (value == nullptr) return fail(cudaErrorInvalidValue);
  if (!is_visible(device)) return fail(cudaErrorInvalidDevice);
  const auto found = device_attribute(number, device);
  if (!found) return fail(cudaErrorInvalidValue);
  *value = *found;
  return cudaSuccess;
}

RT_API cudaDeviceGetPCIBusId(char* text, int size, int device) {
  RT_ENTER;
  if (!is_visible(device)) return fail(cudaErrorInvalidDevice);
  const std::string id = pci_bus_id(device);
  if (text == nullptr || size <= static_cast<int>(id.size())) return fail(cudaErrorInvalidValue);
  std::memcpy(text, id.c_str(), id.size() + 1);
  return cudaSuccess;
}

RT_API cudaDeviceGetByPCIBusId(int* device, const char* text) {
  RT_ENTER;
  if (device == nullptr || text == nullptr) return fail(cudaErrorInvalidValue);
  for (int candidate = 0; candidate < visible_device_count(); ++candidate) {
    if (pci_bus_id(candidate) == text) {
      *device = candidate;
      return cudaSuccess;
    }
  }
  return fail(cudaErrorInvalidDevice);
}

RT_API cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  RT_ENTER;
  poll_kernel_plugin();
  if (least != nullptr) *least = kLeastPriority;
  if (greatest != nullptr) *greatest = kGreatestPriority;
  return cudaSuccess;
}

// ---- settings without effect

RT_API cudaDeviceSetLimit(cudaLimit limit, size_t) {
  RT_ENTER_DEVICE;
  return is_limit(limit) ? cudaSuccess : fail(cudaErrorInvalidValue);
}

RT_API cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  RT_ENTER_DEVICE;
  if (value == nullptr || !is_limit(limit)) return fail(cudaErrorInvalidValue);
  *value = kDefaultLimitBytes;
  return cudaSuccess;
}

RT_API cudaDeviceSetCacheConfig(cudaFuncCache) {
  RT_ENTER_DEVICE;
  return cudaSuccess;
}

RT_API cudaDeviceGetCacheConfig(cudaFuncCache* config) {
  RT_ENTER_DEVICE;
  if (config == nullptr) return fail(cudaErrorInvalidValue);
  *config = cudaFuncCachePreferNone;
  return cudaSuccess;
}

RT_API cudaCtxResetPersistingL2Cache() {
  RT_ENTER_DEVICE;
  return cudaSuccess;
}

RT_API cudaProfilerStart() {
  RT_ENTER;
  return cudaSuccess;
}

RT_API cudaProfilerStop() {
  RT_ENTER;
  return cudaSuccess;
}

// ---- peers

RT_API cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  RT_ENTER;
  if (can == nullptr) return fail(cudaErrorInvalidValue);
  if (!is_visible(device) || !is_visible(peer)) return fail(cudaErrorInvalidDevice);
  *can = device != peer ? 1 : 0;
  return cudaSuccess;
}

RT_API cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  RT_ENTER_DEVICE;
  if (flags != 0) return fail(cudaErrorInvalidValue);
  if (!is_visible(peer)) return fail(cudaErrorInvalidDevice);
  return finish(machine().memory().enable_peer_access(device, peer));
}

RT_API cudaDeviceDisablePeerAccess(int peer) {
  RT_ENTER_DEVICE;
  if (!is_visible(peer)) return fail(cudaErrorInvalidDevice);
  return finish(machine().memory().disable_peer_access(device, peer));
}

RT_API cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute_number, int device,
                                 int peer) {
  RT_ENTER;
  if (value == nullptr) return fail(cudaErrorInvalidValue);
  if (!is_visible(device) || !is_visible(peer) || device == peer)
    return fail(cudaErrorInvalidDevice);
  const bool has_it = attribute_number == cudaDevP2PAttrAccessSupported ||
                      (attribute_number == cudaDevP2PAttrNativeAtomicSupported &&
                       machine().profile().has_fast_peer_links());
  *value = has_it ? 1 : 0;
  return cudaSuccess;
}

// ---- textures

RT_API_AS(cudaChannelFormatDesc)
cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind kind) {
  return {x, y, z, w, kind};
}
