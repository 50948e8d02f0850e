// The calls of CUDA's runtime that are answered for this process's memory, or that it must know of.
#include <optional>

#include "preload/cuda/vendor.hpp"
#include "preload/device_answers.hpp"
#include "preload/registered_memory.hpp"

using namespace uvm::preload;
using namespace uvm::preload::cuda;

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

UVMALLOC_INTERPOSE cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  const cudaError_t result = pass_on(NEXT_OF_RUNTIME(cudaMemGetInfo), free_bytes, total_bytes);
  if (result == cudaSuccess) {
    beside("cudaMemGetInfo", [&] { tell_free_memory(free_bytes, total_bytes, device_of_runtime); });
  }
  return result;
}

UVMALLOC_INTERPOSE cudaError_t cudaHostRegister(void* address, std::size_t size_bytes,
                                                unsigned flags) {
  std::optional<int> result;
  beside("cudaHostRegister",
         [&] { result = RegisteredMemory::instance().add(address, size_bytes); });
  if (result) return static_cast<cudaError_t>(*result);
  return pass_on(NEXT_OF_RUNTIME(cudaHostRegister), address, size_bytes, flags);
}

UVMALLOC_INTERPOSE cudaError_t cudaHostUnregister(void* address) {
  bool was_ours = false;
  beside("cudaHostUnregister", [&] { was_ours = RegisteredMemory::instance().remove(address); });
  if (was_ours) return cudaSuccess;
  return pass_on(NEXT_OF_RUNTIME(cudaHostUnregister), address);
}

UVMALLOC_INTERPOSE cudaError_t cudaHostGetDevicePointer(void** out, void* address, unsigned flags) {
  bool is_ours = false;
  beside("cudaHostGetDevicePointer", [&] {
    is_ours =
        out != nullptr && (is_pinned(address) || RegisteredMemory::instance().contains(address));
  });
  if (is_ours) {
    *out = address;
    return cudaSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(cudaHostGetDevicePointer), out, address, flags);
}

UVMALLOC_INTERPOSE cudaError_t cudaHostGetFlags(unsigned* flags, void* address) {
  if (flags != nullptr && is_pinned(address)) {
    *flags = cudaHostAllocPortable | cudaHostAllocMapped;
    return cudaSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(cudaHostGetFlags), flags, address);
}

UVMALLOC_INTERPOSE cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  note_stream_gone(stream);
  return pass_on(NEXT_OF_RUNTIME(cudaStreamDestroy), stream);
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
