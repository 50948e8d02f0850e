// Allocation of every kind, and queries about addresses.
#include <cstdint>

#include "sim/cuda/driver/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

constexpr unsigned kHostAllocFlags =
    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
constexpr unsigned kRegisterFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                    CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;

CUresult deliver(Status status, void* address, CUdeviceptr* out) {
  if (status == Status::kOk) *out = reinterpret_cast<CUdeviceptr>(address);
  return finish(status);
}

template <class Value>
CUresult write(void* out, Value value) {
  *static_cast<Value*>(out) = value;
  return CUDA_SUCCESS;
}

CUresult pointer_attribute(void* out, CUpointer_attribute attribute, CUdeviceptr address) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto allocation = machine().memory().find(as_pointer(address));
  if (!allocation) return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = machine().mappings().mapped_at(as_pointer(address));
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return write(out, context_of(allocation->device));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return write<unsigned>(out,
                             allocation->is_host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return write(out, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (allocation->kind == MemoryKind::kDevice) return CUDA_ERROR_INVALID_VALUE;
      return write(out, as_pointer(address));
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return write<int>(out, 0);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return write<unsigned long long>(out, allocation->id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return write<unsigned>(out, allocation->kind == MemoryKind::kManaged ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return write<int>(out, allocation->device);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return write<CUdeviceptr>(out, allocation->address);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return write<size_t>(out, allocation->size_bytes);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return write<CUdeviceptr>(out, mapped ? mapped->address : allocation->address);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return write<size_t>(out, mapped ? mapped->size_bytes : allocation->size_bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return write<int>(out, 1);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return write<int>(out, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return write(out, static_cast<CUmemoryPool>(allocation->pool));
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return write<int>(out, allocation->is_shareable() ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return write<int>(out, 0);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return write<unsigned long long>(out, 0);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

CU_API cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  CU_ENTER_CONTEXT;
  if (free_bytes == nullptr || total_bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const MemoryUse use = machine().memory().use(device);
  *total_bytes = use.capacity_bytes;
  *free_bytes = use.free_bytes();
  return CUDA_SUCCESS;
}

CU_API cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  CU_ENTER_CONTEXT;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  void* address = nullptr;
  const Status status = machine().memory().allocate_device(device, bytes, &address);
  return deliver(status, address, out);
}

CU_API cuMemAllocPitch_v2(CUdeviceptr* out, size_t* pitch_bytes, size_t width_bytes, size_t height,
                          unsigned element_bytes) {
  CU_ENTER_CONTEXT;
  const bool is_element = element_bytes == 4 || element_bytes == 8 || element_bytes == 16;
  if (out == nullptr || pitch_bytes == nullptr || !is_element) return CUDA_ERROR_INVALID_VALUE;
  void* address = nullptr;
  const Status status =
      machine().memory().allocate_rows(device, width_bytes, height, pitch_bytes, &address);
  return deliver(status, address, out);
}

CU_API cuMemAllocManaged(CUdeviceptr* out, size_t bytes, unsigned flags) {
  CU_ENTER_CONTEXT;
  if (out == nullptr || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  void* address = nullptr;
  const Status status = machine().memory().allocate_managed(device, bytes, flags, &address);
  return deliver(status, address, out);
}

CU_API cuMemFree_v2(CUdeviceptr address) {
  CU_ENTER_CONTEXT;
  (void)device;
  if (address == 0) return CUDA_SUCCESS;
  return finish(machine().memory().free(as_pointer(address), Wait::kYes));
}

CU_API cuMemAllocHost_v2(void** out, size_t bytes) {
  CU_ENTER_CONTEXT;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return finish(machine().memory().allocate_pinned(device, bytes, 0, out));
}

CU_API cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  CU_ENTER_CONTEXT;
  if (out == nullptr || (flags & ~kHostAllocFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  return finish(machine().memory().allocate_pinned(device, bytes, flags, out));
}

CU_API cuMemFreeHost(void* address) {
  CU_ENTER_CONTEXT;
  (void)device;
  return address == nullptr ? CUDA_SUCCESS : finish(machine().memory().free_pinned(address));
}

CU_API cuMemHostRegister_v2(void* address, size_t bytes, unsigned flags) {
  CU_ENTER_CONTEXT;
  if ((flags & ~kRegisterFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  return finish(machine().memory().register_host(device, address, bytes, flags));
}

CU_API cuMemHostUnregister(void* address) {
  CU_ENTER_CONTEXT;
  (void)device;
  return finish(machine().memory().unregister_host(address));
}

CU_API cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* address, unsigned flags) {
  CU_ENTER_CONTEXT;
  (void)device;
  const auto allocation = machine().memory().find(address);
  if (out == nullptr || flags != 0 || !allocation || !allocation->is_host())
    return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUdeviceptr>(address);
  return CUDA_SUCCESS;
}

CU_API cuMemHostGetFlags(unsigned* flags, void* address) {
  CU_ENTER_CONTEXT;
  (void)device;
  const auto allocation = machine().memory().find(address);
  if (flags == nullptr || !allocation || allocation->kind != MemoryKind::kPinned) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *flags = allocation->flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

CU_API cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  CU_ENTER;
  const auto allocation = machine().memory().find(as_pointer(address));
  if (!allocation) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = allocation->address;
  if (bytes != nullptr) *bytes = allocation->size_bytes;
  return CUDA_SUCCESS;
}

CU_API cuPointerGetAttribute(void* out, CUpointer_attribute attribute, CUdeviceptr address) {
  CU_ENTER;
  return pointer_attribute(out, attribute, address);
}

// An attribute that does not apply to an address is set to zeros; this is not an error.
CU_API cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** outs,
                              CUdeviceptr address) {
  CU_ENTER;
  if (count == 0 || attributes == nullptr || outs == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    const CUresult result = pointer_attribute(outs[i], attributes[i], address);
    if (result == CUDA_SUCCESS) continue;
    if (result != CUDA_ERROR_INVALID_VALUE) return result;
    switch (attributes[i]) {
      case CU_POINTER_ATTRIBUTE_CONTEXT:
      case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        write<std::uint64_t>(outs[i], 0);
        break;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        write<int>(outs[i], CU_DEVICE_INVALID);
        break;
      default:
        write<unsigned>(outs[i], 0);
        break;
    }
  }
  return CUDA_SUCCESS;
}

CU_API cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                             CUdeviceptr address) {
  CU_ENTER;
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
    return CUDA_ERROR_INVALID_VALUE;
  return machine().memory().find(as_pointer(address)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
