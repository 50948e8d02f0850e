// The allocation calls of CUDA's runtime, served where UVMALLOC_CUDA asks for it and passed on
// otherwise. The declarations are those of its header, so a wrong signature does not compile.
#include "preload/cuda/vendor.hpp"
#include "preload/served_answers.hpp"

using namespace uvm::preload;
using namespace uvm::preload::cuda;

using AllocateOnStream = cudaError_t (*)(void**, std::size_t, cudaStream_t);
using AllocateFromPool = cudaError_t (*)(void**, std::size_t, cudaMemPool_t, cudaStream_t);

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

UVMALLOC_INTERPOSE cudaError_t cudaMalloc(void** out, std::size_t size_bytes) {
  if (serve(UVMALLOC_ASKED(cudaMalloc, kDevice, device_of_runtime), out, size_bytes)) {
    return cudaSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(cudaMalloc), out, size_bytes);
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocManaged(void** out, std::size_t size_bytes,
                                                 unsigned flags) {
  const bool is_served =
      flags == cudaMemAttachGlobal
          ? serve(UVMALLOC_ASKED(cudaMallocManaged, kManaged, device_of_runtime), out, size_bytes)
          : leave(UVMALLOC_CALL(cudaMallocManaged));
  if (is_served) return cudaSuccess;
  return pass_on(NEXT_OF_RUNTIME(cudaMallocManaged), out, size_bytes, flags);
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocHost(void** out, std::size_t size_bytes) {
  if (serve(UVMALLOC_ASKED(cudaMallocHost, kPinned, device_of_runtime), out, size_bytes)) {
    return cudaSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(cudaMallocHost), out, size_bytes);
}

UVMALLOC_INTERPOSE cudaError_t cudaHostAlloc(void** out, std::size_t size_bytes, unsigned flags) {
  constexpr unsigned kKnown =
      cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
  if (((flags & ~kKnown) == 0 || leave(UVMALLOC_CALL(cudaHostAlloc))) &&
      serve(UVMALLOC_ASKED(cudaHostAlloc, kPinned, device_of_runtime), out, size_bytes)) {
    return cudaSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(cudaHostAlloc), out, size_bytes, flags);
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocPitch(void** out, std::size_t* pitch_bytes,
                                               std::size_t width_bytes, std::size_t height) {
  if (serve_rows(UVMALLOC_ASKED(cudaMallocPitch, kDevice, device_of_runtime), out, pitch_bytes,
                 width_bytes, height)) {
    return cudaSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(cudaMallocPitch), out, pitch_bytes, width_bytes, height);
}

UVMALLOC_INTERPOSE cudaError_t cudaMalloc3D(cudaPitchedPtr* out, cudaExtent extent) {
  std::size_t rows = 0;
  std::size_t pitch_bytes = 0;
  void* address = nullptr;
  if (out != nullptr && !__builtin_mul_overflow(extent.height, extent.depth, &rows) &&
      serve_rows(UVMALLOC_ASKED(cudaMalloc3D, kDevice, device_of_runtime), &address, &pitch_bytes,
                 extent.width, rows)) {
    *out = {address, pitch_bytes, extent.width, extent.height};
    return cudaSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(cudaMalloc3D), out, extent);
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocAsync(void** out, std::size_t size_bytes,
                                               cudaStream_t stream) {
  if (serve_in_order(UVMALLOC_ASKED(cudaMallocAsync, kDevice, device_of_runtime), out, size_bytes,
                     stream, stream, POOL_QUESTIONS)) {
    return cudaSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME_AS(cudaMallocAsync, AllocateOnStream), out, size_bytes, stream);
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocFromPoolAsync(void** out, std::size_t size_bytes,
                                                       cudaMemPool_t pool, cudaStream_t stream) {
  if (serve_from_pool(UVMALLOC_ASKED(cudaMallocFromPoolAsync, kDevice, device_of_runtime), out,
                      size_bytes, pool, stream, stream, POOL_QUESTIONS))
    return cudaSuccess;
  return pass_on(NEXT_OF_RUNTIME_AS(cudaMallocFromPoolAsync, AllocateFromPool), out, size_bytes,
                 pool, stream);
}

UVMALLOC_INTERPOSE cudaError_t cudaFree(void* address) {
  return release(address, kFreesOfDevice, NEXT_OF_RUNTIME(cudaFree));
}

UVMALLOC_INTERPOSE cudaError_t cudaFreeHost(void* address) {
  return release(address, kFreesOfHost, NEXT_OF_RUNTIME(cudaFreeHost));
}

UVMALLOC_INTERPOSE cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  return release_in_order(address, stream, stream, device_of_stream,
                          NEXT_OF_RUNTIME(cudaFreeAsync));
}

// Attaching says which stream will use the memory, on devices that cannot share it with the host.
// Ours can, and the driver attaches whole spans only.
UVMALLOC_INTERPOSE cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void* address,
                                                        std::size_t size_bytes, unsigned flags) {
  if (find(address)) return cudaSuccess;
  return pass_on(NEXT_OF_RUNTIME(cudaStreamAttachMemAsync), stream, address, size_bytes, flags);
}
UVMALLOC_INTERPOSE cudaError_t cudaDeviceSynchronize() {
  return synchronize(device_of_runtime, NEXT_OF_RUNTIME(cudaDeviceSynchronize));
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
