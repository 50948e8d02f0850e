// Virtual memory management: reserved addresses, and memory mapped at these addresses. A piece of
// memory belongs to one device. A program may request pieces with handles for other processes, as
// PyTorch's expandable segments do, but the export of a handle is refused.
#include "sim/cuda/driver/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

// Checks that the simulated machine can make a piece with these properties.
CUresult check(const CUmemAllocationProp* properties) {
  if (properties == nullptr || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  return machine().has_device(properties->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace

CU_API cuMemGetAllocationGranularity(size_t* out, const CUmemAllocationProp* properties,
                                     CUmemAllocationGranularity_flags flags) {
  CU_ENTER;
  const bool is_known =
      flags == CU_MEM_ALLOC_GRANULARITY_MINIMUM || flags == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
  if (out == nullptr || !is_known) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult refused = check(properties); refused != CUDA_SUCCESS) return refused;
  *out = kMappingGranularityBytes;
  return CUDA_SUCCESS;
}

// The requested address is only a hint, which is ignored.
CU_API cuMemAddressReserve(CUdeviceptr* out, size_t bytes, size_t alignment_bytes, CUdeviceptr,
                           unsigned long long flags) {
  CU_ENTER;
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  void* address = nullptr;
  const Status status = machine().mappings().reserve_addresses(bytes, alignment_bytes, &address);
  if (status == Status::kOk) *out = reinterpret_cast<CUdeviceptr>(address);
  return finish(status);
}

CU_API cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  CU_ENTER;
  return finish(machine().mappings().free_addresses(as_pointer(address), bytes));
}

CU_API cuMemCreate(CUmemGenericAllocationHandle* out, size_t bytes,
                   const CUmemAllocationProp* properties, unsigned long long flags) {
  CU_ENTER;
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult refused = check(properties); refused != CUDA_SUCCESS) return refused;
  PieceHandle handle = 0;
  const Status status = machine().mappings().create_piece(properties->location.id, bytes, &handle);
  if (status == Status::kOk) *out = handle;
  return finish(status);
}

CU_API cuMemRelease(CUmemGenericAllocationHandle handle) {
  CU_ENTER;
  return finish(machine().mappings().release_piece(handle));
}

CU_API cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* out, void* address) {
  CU_ENTER;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  PieceHandle handle = 0;
  const Status status = machine().mappings().retain_piece(address, &handle);
  if (status == Status::kOk) *out = handle;
  return finish(status);
}

CU_API cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* out,
                                              CUmemGenericAllocationHandle handle) {
  CU_ENTER;
  const auto device = machine().mappings().device_of_piece(handle);
  if (out == nullptr || !device) return CUDA_ERROR_INVALID_VALUE;
  *out = {};
  out->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  out->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  out->location.id = *device;
  return CUDA_SUCCESS;
}

CU_API cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                CUmemGenericAllocationHandle handle, unsigned long long flags) {
  CU_ENTER;
  if (offset != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return finish(machine().mappings().map_piece(as_pointer(address), bytes, handle));
}

CU_API cuMemUnmap(CUdeviceptr address, size_t bytes) {
  CU_ENTER;
  return finish(machine().mappings().unmap_pieces(as_pointer(address), bytes));
}

CU_API cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* descriptions,
                      size_t count) {
  CU_ENTER;
  if (descriptions == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const CUmemAccessDesc& description = descriptions[i];
    if (description.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    const bool may_use = description.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (!may_use && description.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    const Status status = machine().mappings().set_access(as_pointer(address), bytes,
                                                          description.location.id, may_use);
    if (status != Status::kOk) return finish(status);
  }
  return CUDA_SUCCESS;
}

CU_API cuMemGetAccess(unsigned long long* out, const CUmemLocation* location, CUdeviceptr address) {
  CU_ENTER;
  if (out == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  bool may_use = false;
  const Status status = machine().mappings().access_of(as_pointer(address), location->id, &may_use);
  if (status == Status::kOk) {
    *out = may_use ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  }
  return finish(status);
}
