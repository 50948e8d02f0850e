// Allocation of every kind, and queries about addresses.
#include <algorithm>

#include "sim/api/kernel_plugin.hpp"
#include "sim/cuda/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

// A request for 0 bytes gives the null pointer.
template <class Allocate>
cudaError_t allocate_if_any(void** out, size_t bytes, Allocate allocate) {
  if (out == nullptr) return fail(cudaErrorInvalidValue);
  if (bytes == 0) {
    *out = nullptr;
    return cudaSuccess;
  }
  return finish(allocate());
}

constexpr unsigned kHostAllocFlags =
    cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
constexpr unsigned kRegisterFlags = cudaHostRegisterPortable | cudaHostRegisterMapped |
                                    cudaHostRegisterIoMemory | cudaHostRegisterReadOnly;

}  // namespace

RT_API cudaMalloc(void** out, size_t bytes) {
  RT_ENTER_DEVICE;
  poll_kernel_plugin();
  return allocate_if_any(out, bytes,
                         [&] { return machine().memory().allocate_device(device, bytes, out); });
}

RT_API cudaMallocPitch(void** out, size_t* pitch_bytes, size_t width_bytes, size_t height) {
  RT_ENTER_DEVICE;
  if (pitch_bytes == nullptr) return fail(cudaErrorInvalidValue);
  return allocate_if_any(out, std::min(width_bytes, height), [&] {
    return machine().memory().allocate_rows(device, width_bytes, height, pitch_bytes, out);
  });
}

RT_API cudaMalloc3D(cudaPitchedPtr* out, cudaExtent extent) {
  RT_ENTER_DEVICE;
  if (out == nullptr) return fail(cudaErrorInvalidValue);
  std::size_t rows = 0;
  if (__builtin_mul_overflow(extent.height, extent.depth, &rows))
    return fail(cudaErrorMemoryAllocation);
  *out = {nullptr, 0, extent.width, extent.height};
  return allocate_if_any(&out->ptr, std::min(extent.width, rows), [&] {
    return machine().memory().allocate_rows(device, extent.width, rows, &out->pitch, &out->ptr);
  });
}

RT_API cudaMallocManaged(void** out, size_t bytes, unsigned flags) {
  RT_ENTER_DEVICE;
  if (out == nullptr || (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost)) {
    return fail(cudaErrorInvalidValue);
  }
  const Status status = admit_managed_call();
  return finish(status == Status::kOk
                    ? machine().memory().allocate_managed(device, bytes, flags, out)
                    : status);
}

RT_API cudaMallocHost(void** out, size_t bytes) {
  RT_ENTER_DEVICE;
  return allocate_if_any(out, bytes,
                         [&] { return machine().memory().allocate_pinned(device, bytes, 0, out); });
}

RT_API cudaHostAlloc(void** out, size_t bytes, unsigned flags) {
  RT_ENTER_DEVICE;
  if ((flags & ~kHostAllocFlags) != 0) return fail(cudaErrorInvalidValue);
  return allocate_if_any(
      out, bytes, [&] { return machine().memory().allocate_pinned(device, bytes, flags, out); });
}

RT_API cudaFree(void* address) {
  RT_ENTER_DEVICE;
  if (address == nullptr) return cudaSuccess;
  return finish(free_of_device(address));
}

RT_API cudaFreeHost(void* address) {
  RT_ENTER_DEVICE;
  if (address == nullptr) return cudaSuccess;
  return finish(free_of_host(address));
}

RT_API cudaHostRegister(void* address, size_t bytes, unsigned flags) {
  RT_ENTER_DEVICE;
  if ((flags & ~kRegisterFlags) != 0) return fail(cudaErrorInvalidValue);
  return finish(machine().memory().register_host(device, address, bytes, flags));
}

RT_API cudaHostUnregister(void* address) {
  RT_ENTER_DEVICE;
  return finish(machine().memory().unregister_host(address));
}

RT_API cudaHostGetDevicePointer(void** out, void* address, unsigned flags) {
  RT_ENTER_DEVICE;
  const auto allocation = machine().memory().find(address);
  if (out == nullptr || flags != 0 || !allocation || !allocation->is_host()) {
    return fail(cudaErrorInvalidValue);
  }
  *out = address;
  return cudaSuccess;
}

RT_API cudaHostGetFlags(unsigned* flags, void* address) {
  RT_ENTER_DEVICE;
  const auto allocation = machine().memory().find(address);
  if (flags == nullptr || !allocation || allocation->kind != MemoryKind::kPinned) {
    return fail(cudaErrorInvalidValue);
  }
  *flags = allocation->flags | cudaHostAllocMapped;
  return cudaSuccess;
}

RT_API cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  RT_ENTER_DEVICE;
  if (free_bytes == nullptr || total_bytes == nullptr) return fail(cudaErrorInvalidValue);
  const MemoryUse use = machine().memory().use(device);
  *total_bytes = total_bytes_of(use);
  *free_bytes = use.free_bytes();
  return cudaSuccess;
}
