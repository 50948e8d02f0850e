// Stream-ordered allocation, in the form that sim/cuda/runtime/pool.cpp describes.
#include "sim/api/pool.hpp"

#include "sim/cuda/driver/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

CUresult allocate(CallRecord& call, int device, CUstream stream, CUmemoryPool pool,
                  CUdeviceptr* out, size_t bytes) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto target = machine().streams().find_stream(device, stream);
  Status status = admit_pool_call(call, target);
  if (status != Status::kOk) return finish(status);
  void* address = nullptr;
  const PoolHandle source = pool != nullptr ? pool : machine().pools().current_of(target->device);
  status = machine().pools().allocate(source, bytes, &address);
  if (status == Status::kOk) *out = reinterpret_cast<CUdeviceptr>(address);
  return finish(status);
}

}  // namespace

CU_API cuMemAllocAsync(CUdeviceptr* out, size_t bytes, CUstream stream) {
  CU_ENTER_CONTEXT;
  return allocate(call_record, device, stream, nullptr, out, bytes);
}

CU_API cuMemAllocFromPoolAsync(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  CU_ENTER_CONTEXT;
  return pool == nullptr ? CUDA_ERROR_INVALID_VALUE
                         : allocate(call_record, device, stream, pool, out, bytes);
}

CU_API cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  CU_ENTER_CONTEXT;
  const Status status =
      admit_pool_call(call_record, machine().streams().find_stream(device, stream));
  if (status != Status::kOk) return finish(status);
  return address == 0 ? CUDA_SUCCESS
                      : finish(machine().memory().free(as_pointer(address), Wait::kNo));
}

CU_API cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  CU_ENTER;
  if (!is_visible(device)) return CUDA_ERROR_INVALID_DEVICE;
  *pool = static_cast<CUmemoryPool>(machine().pools().default_of(device));
  return CUDA_SUCCESS;
}

CU_API cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  CU_ENTER;
  if (!is_visible(device)) return CUDA_ERROR_INVALID_DEVICE;
  *pool = static_cast<CUmemoryPool>(machine().pools().current_of(device));
  return CUDA_SUCCESS;
}

CU_API cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  CU_ENTER;
  if (!is_visible(device)) return CUDA_ERROR_INVALID_DEVICE;
  return finish(machine().pools().set_current(device, pool));
}

CU_API cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  CU_ENTER;
  if (pool == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool is_plain = properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
                        properties->handleTypes == CU_MEM_HANDLE_TYPE_NONE &&
                        properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (!is_plain) return CUDA_ERROR_NOT_SUPPORTED;
  const int device = properties->location.id;
  if (!is_visible(device)) return CUDA_ERROR_INVALID_DEVICE;
  *pool = static_cast<CUmemoryPool>(machine().pools().create(device, properties->maxSize));
  return CUDA_SUCCESS;
}

CU_API cuMemPoolDestroy(CUmemoryPool pool) {
  CU_ENTER;
  return finish(machine().pools().destroy(pool));
}

CU_API cuMemPoolTrimTo(CUmemoryPool pool, size_t) {
  CU_ENTER;
  return machine().pools().find(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  CU_ENTER;
  return finish(get_pool_attribute(pool, attribute, value));
}

CU_API cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  CU_ENTER;
  return finish(set_pool_attribute(pool, attribute, value));
}
