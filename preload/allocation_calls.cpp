// CUDA's allocation calls, served where UVMALLOC_CUDA asks for it and passed on otherwise. The
// declarations are those of CUDA's headers, so a wrong signature does not compile.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include <uvmalloc/preload/interpose.hpp>
#include <uvmalloc/preload/served_memory.hpp>
#include <uvmalloc/storage/pages.hpp>

// The real function behind a call, looked up once.
#define NEXT(function, library)                                                 \
  ([]() noexcept {                                                              \
    static const auto kNext =                                                   \
        uvm::preload::next_function<decltype(&(function))>(#function, library); \
    return kNext;                                                               \
  }())
#define NEXT_OF_RUNTIME(function) NEXT(function, "libcudart.so")
#define NEXT_OF_DRIVER(function) NEXT(function, "libcuda.so")
#define CALLER __builtin_return_address(0)

namespace uvm::preload {
namespace {

// What a call answers where the library behind it is not there: cudaErrorInitializationError and
// CUDA_ERROR_NOT_INITIALIZED.
constexpr int kMissing = 3;
constexpr auto kNoRuntime = static_cast<cudaError_t>(kMissing);
constexpr auto kNoDriver = static_cast<CUresult>(kMissing);

// Rows of pitched memory begin at multiples of it, as textures want them.
constexpr std::size_t kPitchBytes = 512;
static_assert(kPitchBytes % kGranule == 0);

// Stream 0 of a program that was compiled for a default stream per thread.
template <class Stream>
Stream per_thread(Stream stream) {
  return stream != nullptr ? stream : reinterpret_cast<Stream>(std::uintptr_t{2});
}

// The current device of the thread; -1: none, and CUDA is to say why.
int device_of_runtime() noexcept {
  int device = -1;
  const auto get = NEXT_OF_RUNTIME(cudaGetDevice);
  return get != nullptr && get(&device) == cudaSuccess ? device : -1;
}
int device_of_driver() noexcept {
  CUdevice device = -1;
  const auto get = NEXT_OF_DRIVER(cuCtxGetDevice);
  return get != nullptr && get(&device) == CUDA_SUCCESS ? device : -1;
}

// nullptr: the call is CUDA's.
void* serve(Facade facade, int device, std::size_t size_bytes, StreamHandle stream,
            const void* caller) noexcept {
  if (device < 0 || !wants_to_serve()) return nullptr;
  ServedMemory* memory = ServedMemory::instance();
  return memory != nullptr ? memory->allocate(facade, device, size_bytes, stream, caller) : nullptr;
}

// What a free answers; nullopt: the address is CUDA's. cudaErrorInvalidValue and
// CUDA_ERROR_INVALID_VALUE are 1.
std::optional<int> answer_of(ServedMemory::Freed freed) noexcept {
  if (freed == ServedMemory::Freed::kNotOurs) return std::nullopt;
  return freed == ServedMemory::Freed::kYes ? 0 : 1;
}
std::optional<int> take_back(void* address) noexcept {
  ServedMemory* memory = ServedMemory::existing();
  if (memory == nullptr) return std::nullopt;
  return answer_of(memory->free(address));
}
std::optional<int> take_back(void* address, int device, StreamHandle stream) noexcept {
  ServedMemory* memory = ServedMemory::existing();
  if (memory == nullptr || device < 0) return std::nullopt;
  return answer_of(memory->free_async(address, device, stream));
}

// Pitched memory of `rows` rows. 0 bytes, and more than there can be, are CUDA's.
void* serve_rows(int device, std::size_t width_bytes, std::size_t rows, std::size_t* pitch_bytes,
                 const void* caller) noexcept {
  const std::size_t pitch = round_up(width_bytes, kPitchBytes);
  std::size_t size_bytes = 0;
  if (pitch < width_bytes || __builtin_mul_overflow(pitch, rows, &size_bytes)) return nullptr;
  void* address = serve(Facade::kDevice, device, size_bytes, nullptr, caller);
  if (address != nullptr) *pitch_bytes = pitch;
  return address;
}

// Whether a pool is its device's default pool: the limits of others are the program's.
bool is_default_pool(cudaMemPool_t pool, int device) noexcept {
  const auto get = NEXT_OF_RUNTIME(cudaDeviceGetDefaultMemPool);
  cudaMemPool_t found = nullptr;
  return device >= 0 && get != nullptr && get(&found, device) == cudaSuccess && found == pool;
}

CUdeviceptr number_of(const void* address) {
  return reinterpret_cast<CUdeviceptr>(address);
}
void* pointer_of(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

template <class Result, class Next>
Result synchronize(int device, Next next, Result missing) noexcept {
  if (next == nullptr) return missing;
  ServedMemory* memory = ServedMemory::existing();
  if (memory == nullptr || device < 0) return next();
  Result result{};
  memory->free_after(device, [&] {
    result = next();
    return result == Result{};
  });
  return result;
}

}  // namespace
}  // namespace uvm::preload

using uvm::Facade;
using namespace uvm::preload;

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

// ---- the runtime's

UVMALLOC_INTERPOSE cudaError_t cudaMalloc(void** out, std::size_t size_bytes) {
  if (out != nullptr) {
    if (void* address = serve(Facade::kDevice, device_of_runtime(), size_bytes, nullptr, CALLER)) {
      *out = address;
      return cudaSuccess;
    }
  }
  const auto next = NEXT_OF_RUNTIME(cudaMalloc);
  return next != nullptr ? next(out, size_bytes) : kNoRuntime;
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocHost(void** out, std::size_t size_bytes) {
  if (out != nullptr) {
    if (void* address = serve(Facade::kPinned, device_of_runtime(), size_bytes, nullptr, CALLER)) {
      *out = address;
      return cudaSuccess;
    }
  }
  const auto next = NEXT_OF_RUNTIME(cudaMallocHost);
  return next != nullptr ? next(out, size_bytes) : kNoRuntime;
}

UVMALLOC_INTERPOSE cudaError_t cudaHostAlloc(void** out, std::size_t size_bytes, unsigned flags) {
  constexpr unsigned kKnown =
      cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
  if (out != nullptr && (flags & ~kKnown) == 0) {
    if (void* address = serve(Facade::kPinned, device_of_runtime(), size_bytes, nullptr, CALLER)) {
      *out = address;
      return cudaSuccess;
    }
  }
  const auto next = NEXT_OF_RUNTIME(cudaHostAlloc);
  return next != nullptr ? next(out, size_bytes, flags) : kNoRuntime;
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocPitch(void** out, std::size_t* pitch_bytes,
                                               std::size_t width_bytes, std::size_t height) {
  if (out != nullptr && pitch_bytes != nullptr) {
    if (void* address = serve_rows(device_of_runtime(), width_bytes, height, pitch_bytes, CALLER)) {
      *out = address;
      return cudaSuccess;
    }
  }
  const auto next = NEXT_OF_RUNTIME(cudaMallocPitch);
  return next != nullptr ? next(out, pitch_bytes, width_bytes, height) : kNoRuntime;
}

UVMALLOC_INTERPOSE cudaError_t cudaMalloc3D(cudaPitchedPtr* out, cudaExtent extent) {
  std::size_t rows = 0;
  if (out != nullptr && !__builtin_mul_overflow(extent.height, extent.depth, &rows)) {
    std::size_t pitch_bytes = 0;
    if (void* address = serve_rows(device_of_runtime(), extent.width, rows, &pitch_bytes, CALLER)) {
      *out = {address, pitch_bytes, extent.width, extent.height};
      return cudaSuccess;
    }
  }
  const auto next = NEXT_OF_RUNTIME(cudaMalloc3D);
  return next != nullptr ? next(out, extent) : kNoRuntime;
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocAsync(void** out, std::size_t size_bytes,
                                               cudaStream_t stream) {
  if (out != nullptr) {
    if (void* address = serve(Facade::kDevice, device_of_runtime(), size_bytes, stream, CALLER)) {
      *out = address;
      return cudaSuccess;
    }
  }
  const auto next = NEXT_OF_RUNTIME(cudaMallocAsync);
  return next != nullptr ? next(out, size_bytes, stream) : kNoRuntime;
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocAsync_ptsz(void** out, std::size_t size_bytes,
                                                    cudaStream_t stream) {
  if (out != nullptr) {
    if (void* address =
            serve(Facade::kDevice, device_of_runtime(), size_bytes, per_thread(stream), CALLER)) {
      *out = address;
      return cudaSuccess;
    }
  }
  const auto next = NEXT_OF_RUNTIME(cudaMallocAsync_ptsz);
  return next != nullptr ? next(out, size_bytes, stream) : kNoRuntime;
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocFromPoolAsync(void** out, std::size_t size_bytes,
                                                       cudaMemPool_t pool, cudaStream_t stream) {
  const int device = wants_to_serve() ? device_of_runtime() : -1;
  if (out != nullptr && is_default_pool(pool, device)) {
    if (void* address = serve(Facade::kDevice, device, size_bytes, stream, CALLER)) {
      *out = address;
      return cudaSuccess;
    }
  }
  const auto next = NEXT_OF_RUNTIME(cudaMallocFromPoolAsync);
  return next != nullptr ? next(out, size_bytes, pool, stream) : kNoRuntime;
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocFromPoolAsync_ptsz(void** out, std::size_t size_bytes,
                                                            cudaMemPool_t pool,
                                                            cudaStream_t stream) {
  const int device = wants_to_serve() ? device_of_runtime() : -1;
  if (out != nullptr && is_default_pool(pool, device)) {
    if (void* address = serve(Facade::kDevice, device, size_bytes, per_thread(stream), CALLER)) {
      *out = address;
      return cudaSuccess;
    }
  }
  const auto next = NEXT_OF_RUNTIME(cudaMallocFromPoolAsync_ptsz);
  return next != nullptr ? next(out, size_bytes, pool, stream) : kNoRuntime;
}

UVMALLOC_INTERPOSE cudaError_t cudaFree(void* address) {
  if (const auto answer = take_back(address)) return static_cast<cudaError_t>(*answer);
  const auto next = NEXT_OF_RUNTIME(cudaFree);
  return next != nullptr ? next(address) : kNoRuntime;
}

UVMALLOC_INTERPOSE cudaError_t cudaFreeHost(void* address) {
  if (const auto answer = take_back(address)) return static_cast<cudaError_t>(*answer);
  const auto next = NEXT_OF_RUNTIME(cudaFreeHost);
  return next != nullptr ? next(address) : kNoRuntime;
}

UVMALLOC_INTERPOSE cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  if (ServedMemory::existing() != nullptr) {
    const auto answer = take_back(address, device_of_runtime(), stream);
    if (answer) return static_cast<cudaError_t>(*answer);
  }
  const auto next = NEXT_OF_RUNTIME(cudaFreeAsync);
  return next != nullptr ? next(address, stream) : kNoRuntime;
}

UVMALLOC_INTERPOSE cudaError_t cudaFreeAsync_ptsz(void* address, cudaStream_t stream) {
  if (ServedMemory::existing() != nullptr) {
    const auto answer = take_back(address, device_of_runtime(), per_thread(stream));
    if (answer) return static_cast<cudaError_t>(*answer);
  }
  const auto next = NEXT_OF_RUNTIME(cudaFreeAsync_ptsz);
  return next != nullptr ? next(address, stream) : kNoRuntime;
}

UVMALLOC_INTERPOSE cudaError_t cudaDeviceSynchronize() {
  const int device = ServedMemory::existing() != nullptr ? device_of_runtime() : -1;
  return synchronize(device, NEXT_OF_RUNTIME(cudaDeviceSynchronize), kNoRuntime);
}

// ---- the driver's

UVMALLOC_INTERPOSE CUresult cuMemAlloc_v2(CUdeviceptr* out, std::size_t size_bytes) {
  if (out != nullptr && wants_to_serve()) {
    if (void* address = serve(Facade::kDevice, device_of_driver(), size_bytes, nullptr, CALLER)) {
      *out = number_of(address);
      return CUDA_SUCCESS;
    }
  }
  const auto next = NEXT_OF_DRIVER(cuMemAlloc_v2);
  return next != nullptr ? next(out, size_bytes) : kNoDriver;
}

UVMALLOC_INTERPOSE CUresult cuMemAllocPitch_v2(CUdeviceptr* out, std::size_t* pitch_bytes,
                                               std::size_t width_bytes, std::size_t height,
                                               unsigned element_bytes) {
  const bool is_valid = element_bytes == 4 || element_bytes == 8 || element_bytes == 16;
  if (out != nullptr && pitch_bytes != nullptr && is_valid && wants_to_serve()) {
    if (void* address = serve_rows(device_of_driver(), width_bytes, height, pitch_bytes, CALLER)) {
      *out = number_of(address);
      return CUDA_SUCCESS;
    }
  }
  const auto next = NEXT_OF_DRIVER(cuMemAllocPitch_v2);
  return next != nullptr ? next(out, pitch_bytes, width_bytes, height, element_bytes) : kNoDriver;
}

UVMALLOC_INTERPOSE CUresult cuMemAllocHost_v2(void** out, std::size_t size_bytes) {
  if (out != nullptr && wants_to_serve()) {
    if (void* address = serve(Facade::kPinned, device_of_driver(), size_bytes, nullptr, CALLER)) {
      *out = address;
      return CUDA_SUCCESS;
    }
  }
  const auto next = NEXT_OF_DRIVER(cuMemAllocHost_v2);
  return next != nullptr ? next(out, size_bytes) : kNoDriver;
}

UVMALLOC_INTERPOSE CUresult cuMemHostAlloc(void** out, std::size_t size_bytes, unsigned flags) {
  constexpr unsigned kKnown =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (out != nullptr && (flags & ~kKnown) == 0 && wants_to_serve()) {
    if (void* address = serve(Facade::kPinned, device_of_driver(), size_bytes, nullptr, CALLER)) {
      *out = address;
      return CUDA_SUCCESS;
    }
  }
  const auto next = NEXT_OF_DRIVER(cuMemHostAlloc);
  return next != nullptr ? next(out, size_bytes, flags) : kNoDriver;
}

UVMALLOC_INTERPOSE CUresult cuMemAllocAsync(CUdeviceptr* out, std::size_t size_bytes,
                                            CUstream stream) {
  if (out != nullptr && wants_to_serve()) {
    if (void* address = serve(Facade::kDevice, device_of_driver(), size_bytes, stream, CALLER)) {
      *out = number_of(address);
      return CUDA_SUCCESS;
    }
  }
  const auto next = NEXT_OF_DRIVER(cuMemAllocAsync);
  return next != nullptr ? next(out, size_bytes, stream) : kNoDriver;
}

UVMALLOC_INTERPOSE CUresult cuMemAllocAsync_ptsz(CUdeviceptr* out, std::size_t size_bytes,
                                                 CUstream stream) {
  if (out != nullptr && wants_to_serve()) {
    if (void* address =
            serve(Facade::kDevice, device_of_driver(), size_bytes, per_thread(stream), CALLER)) {
      *out = number_of(address);
      return CUDA_SUCCESS;
    }
  }
  const auto next = NEXT_OF_DRIVER(cuMemAllocAsync_ptsz);
  return next != nullptr ? next(out, size_bytes, stream) : kNoDriver;
}

UVMALLOC_INTERPOSE CUresult cuMemFree_v2(CUdeviceptr address) {
  if (const auto answer = take_back(pointer_of(address))) return static_cast<CUresult>(*answer);
  const auto next = NEXT_OF_DRIVER(cuMemFree_v2);
  return next != nullptr ? next(address) : kNoDriver;
}

UVMALLOC_INTERPOSE CUresult cuMemFreeHost(void* address) {
  if (const auto answer = take_back(address)) return static_cast<CUresult>(*answer);
  const auto next = NEXT_OF_DRIVER(cuMemFreeHost);
  return next != nullptr ? next(address) : kNoDriver;
}

UVMALLOC_INTERPOSE CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  if (ServedMemory::existing() != nullptr) {
    const auto answer = take_back(pointer_of(address), device_of_driver(), stream);
    if (answer) return static_cast<CUresult>(*answer);
  }
  const auto next = NEXT_OF_DRIVER(cuMemFreeAsync);
  return next != nullptr ? next(address, stream) : kNoDriver;
}

UVMALLOC_INTERPOSE CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  if (ServedMemory::existing() != nullptr) {
    const auto answer = take_back(pointer_of(address), device_of_driver(), per_thread(stream));
    if (answer) return static_cast<CUresult>(*answer);
  }
  const auto next = NEXT_OF_DRIVER(cuMemFreeAsync_ptsz);
  return next != nullptr ? next(address, stream) : kNoDriver;
}

// The driver knows spans, not the blocks in them.
UVMALLOC_INTERPOSE CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size_bytes,
                                                    CUdeviceptr address) {
  const ServedMemory* memory = ServedMemory::existing();
  ServedMemory::Range range;
  if (memory != nullptr && memory->find(pointer_of(address), &range)) {
    if (base != nullptr) *base = number_of(range.base);
    if (size_bytes != nullptr) *size_bytes = range.size_bytes;
    return CUDA_SUCCESS;
  }
  const auto next = NEXT_OF_DRIVER(cuMemGetAddressRange_v2);
  return next != nullptr ? next(base, size_bytes, address) : kNoDriver;
}

UVMALLOC_INTERPOSE CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* address,
                                                         unsigned flags) {
  const ServedMemory* memory = ServedMemory::existing();
  ServedMemory::Range range;
  if (memory != nullptr && out != nullptr && flags == 0 && memory->find(address, &range) &&
      range.facade == Facade::kPinned) {
    *out = number_of(address);
    return CUDA_SUCCESS;
  }
  const auto next = NEXT_OF_DRIVER(cuMemHostGetDevicePointer_v2);
  return next != nullptr ? next(out, address, flags) : kNoDriver;
}

UVMALLOC_INTERPOSE CUresult cuMemHostGetFlags(unsigned* flags, void* address) {
  const ServedMemory* memory = ServedMemory::existing();
  ServedMemory::Range range;
  if (memory != nullptr && flags != nullptr && memory->find(address, &range) &&
      range.facade == Facade::kPinned) {
    *flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
  }
  const auto next = NEXT_OF_DRIVER(cuMemHostGetFlags);
  return next != nullptr ? next(flags, address) : kNoDriver;
}

UVMALLOC_INTERPOSE CUresult cuCtxSynchronize() {
  const int device = ServedMemory::existing() != nullptr ? device_of_driver() : -1;
  return synchronize(device, NEXT_OF_DRIVER(cuCtxSynchronize), kNoDriver);
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
