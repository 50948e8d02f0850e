// Queries about addresses.
#include <cstring>

#include "sim/cuda/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

RT_API cudaPointerGetAttributes(cudaPointerAttributes* out, const void* address) {
  RT_ENTER_DEVICE;
  if (out == nullptr) return fail(cudaErrorInvalidValue);
  std::memset(out, 0, sizeof *out);
  auto* pointer = const_cast<void*>(address);
  const auto allocation = machine().memory().find(address);
  if (!allocation) {
    out->type = cudaMemoryTypeUnregistered;
    out->device = cudaInvalidDeviceId;
    out->hostPointer = pointer;
    return cudaSuccess;
  }
  out->device = allocation->device;
  out->devicePointer = pointer;
  switch (allocation->kind) {
    case MemoryKind::kManaged:
      out->type = cudaMemoryTypeManaged;
      break;
    case MemoryKind::kDevice:
      out->type = cudaMemoryTypeDevice;
      break;
    case MemoryKind::kPinned:
    case MemoryKind::kRegistered:
      out->type = cudaMemoryTypeHost;
      break;
    case MemoryKind::kOrdinary:  // not allocated by the machine
      break;
  }
  out->hostPointer = allocation->kind == MemoryKind::kDevice ? nullptr : pointer;
  return cudaSuccess;
}
