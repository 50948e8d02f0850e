// CUDA's allocation calls, served where UVMALLOC_CUDA asks for it and passed on otherwise. The
// declarations are those of CUDA's headers, so a wrong signature does not compile.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <optional>

#include <uvmalloc/preload/call_coverage.hpp>
#include <uvmalloc/preload/interpose.hpp>
#include <uvmalloc/preload/served_memory.hpp>
#include <uvmalloc/runtime/device_runtime.hpp>
#include <uvmalloc/storage/pages.hpp>

#define ASKED(function, kind, current_device)                                 \
  Asked {                                                                     \
    kCall_##function, Kind::kind, current_device, __builtin_return_address(0) \
  }

namespace uvm::preload {
namespace {

// Rows of pitched memory begin at multiples of it, as textures want them.
constexpr std::size_t kPitchBytes = 512;
static_assert(kPitchBytes % kGranule == 0);

// Stream 0 of a program that was compiled for a default stream per thread.
StreamHandle per_thread(StreamHandle stream) {
  return stream != nullptr ? stream : kPerThreadStream;
}

// The current device of the thread, as each interface has it; -1: none, and CUDA is to say why.
using CurrentDevice = int (*)() noexcept;
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

using Kind = ServedMemory::Kind;

// An allocation call: which, its memory, and the code that made it.
struct Asked {
  Call call;
  Kind kind;
  CurrentDevice current_device;
  const void* caller;
};

// `out` gets the block, as a pointer or as the driver's number for one. False: the call is CUDA's.
template <class Address>
bool serve(const Asked& asked, Address* out, std::size_t size_bytes,
           StreamHandle stream = nullptr) noexcept {
  if (!wants_to_serve()) return false;
  const int device = out != nullptr ? asked.current_device() : -1;
  ServedMemory* memory = device >= 0 ? ServedMemory::instance() : nullptr;
  void* address = nullptr;
  const Outcome outcome =
      memory == nullptr
          ? Outcome::kLeft
          : memory->allocate({asked.kind, device, size_bytes, stream, asked.caller}, &address);
  count(asked.call, outcome);
  if (outcome != Outcome::kServed) return false;
  *out = reinterpret_cast<Address>(address);
  return true;
}

// This use of the call is left to CUDA.
bool leave(Call call) noexcept {
  if (wants_to_serve()) count(call, Outcome::kLeft);
  return false;
}

// Pitched memory of `rows` rows. 0 bytes, and more than there can be, are CUDA's.
template <class Address>
bool serve_rows(const Asked& asked, Address* out, std::size_t* pitch_bytes, std::size_t width_bytes,
                std::size_t rows) noexcept {
  const std::size_t pitch = round_up(width_bytes, kPitchBytes);
  std::size_t size_bytes = 0;
  if (pitch_bytes == nullptr || pitch < width_bytes ||
      __builtin_mul_overflow(pitch, rows, &size_bytes)) {
    return leave(asked.call);
  }
  if (!serve(asked, out, size_bytes)) return false;
  *pitch_bytes = pitch;
  return true;
}

// From a device's default pool. The limits of other pools are the program's.
bool serve_from_pool(const Asked& asked, void** out, std::size_t size_bytes, cudaMemPool_t pool,
                     StreamHandle stream) noexcept {
  if (!wants_to_serve()) return false;
  const auto get = NEXT_OF_RUNTIME(cudaDeviceGetDefaultMemPool);
  const int device = device_of_runtime();
  cudaMemPool_t default_pool = nullptr;
  const bool is_default = device >= 0 && get != nullptr &&
                          get(&default_pool, device) == cudaSuccess && pool == default_pool;
  return is_default ? serve(asked, out, size_bytes, stream) : leave(asked.call);
}

// What a free answers; nullopt: the address is CUDA's. cudaErrorInvalidValue and
// CUDA_ERROR_INVALID_VALUE are 1.
template <class Result>
std::optional<Result> answer_of(ServedMemory::Freed freed) noexcept {
  if (freed == ServedMemory::Freed::kNotOurs) return std::nullopt;
  return static_cast<Result>(freed == ServedMemory::Freed::kYes ? 0 : 1);
}
template <class Result>
std::optional<Result> take_back(void* address) noexcept {
  ServedMemory* memory = ServedMemory::existing();
  if (memory == nullptr) return std::nullopt;
  return answer_of<Result>(memory->free(address));
}
template <class Result>
std::optional<Result> take_back(void* address, CurrentDevice current_device,
                                StreamHandle stream) noexcept {
  ServedMemory* memory = ServedMemory::existing();
  const int device = memory != nullptr ? current_device() : -1;
  if (device < 0) return std::nullopt;
  return answer_of<Result>(memory->free_async(address, device, stream));
}

void* pointer_of(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

// The block of ours that `address` points into.
std::optional<ServedMemory::Range> find(const void* address) noexcept {
  const ServedMemory* memory = ServedMemory::existing();
  ServedMemory::Range range;
  if (memory == nullptr || !memory->find(address, &range)) return std::nullopt;
  return range;
}
bool is_pinned(const void* address) noexcept {
  const auto range = find(address);
  return range && range->kind == ServedMemory::Kind::kPinned;
}

template <class Result>
Result synchronize(CurrentDevice current_device, Result (*next)()) noexcept {
  ServedMemory* memory = ServedMemory::existing();
  const int device = memory != nullptr && next != nullptr ? current_device() : -1;
  if (device < 0) return pass_on(next);
  Result result{};
  memory->free_after(device, [&] {
    result = next();
    return result == Result{};
  });
  return result;
}

}  // namespace
}  // namespace uvm::preload

using namespace uvm::preload;

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

// ---- the runtime's

UVMALLOC_INTERPOSE cudaError_t cudaMalloc(void** out, std::size_t size_bytes) {
  if (serve(ASKED(cudaMalloc, kDevice, device_of_runtime), out, size_bytes)) {
    return cudaSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(cudaMalloc), out, size_bytes);
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocManaged(void** out, std::size_t size_bytes,
                                                 unsigned flags) {
  const bool is_served =
      flags == cudaMemAttachGlobal
          ? serve(ASKED(cudaMallocManaged, kManaged, device_of_runtime), out, size_bytes)
          : leave(kCall_cudaMallocManaged);
  if (is_served) return cudaSuccess;
  return pass_on(NEXT_OF_RUNTIME(cudaMallocManaged), out, size_bytes, flags);
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocHost(void** out, std::size_t size_bytes) {
  if (serve(ASKED(cudaMallocHost, kPinned, device_of_runtime), out, size_bytes)) {
    return cudaSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(cudaMallocHost), out, size_bytes);
}

UVMALLOC_INTERPOSE cudaError_t cudaHostAlloc(void** out, std::size_t size_bytes, unsigned flags) {
  constexpr unsigned kKnown =
      cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
  if (((flags & ~kKnown) == 0 || leave(kCall_cudaHostAlloc)) &&
      serve(ASKED(cudaHostAlloc, kPinned, device_of_runtime), out, size_bytes)) {
    return cudaSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(cudaHostAlloc), out, size_bytes, flags);
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocPitch(void** out, std::size_t* pitch_bytes,
                                               std::size_t width_bytes, std::size_t height) {
  if (serve_rows(ASKED(cudaMallocPitch, kDevice, device_of_runtime), out, pitch_bytes, width_bytes,
                 height)) {
    return cudaSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(cudaMallocPitch), out, pitch_bytes, width_bytes, height);
}

UVMALLOC_INTERPOSE cudaError_t cudaMalloc3D(cudaPitchedPtr* out, cudaExtent extent) {
  std::size_t rows = 0;
  std::size_t pitch_bytes = 0;
  void* address = nullptr;
  if (out != nullptr && !__builtin_mul_overflow(extent.height, extent.depth, &rows) &&
      serve_rows(ASKED(cudaMalloc3D, kDevice, device_of_runtime), &address, &pitch_bytes,
                 extent.width, rows)) {
    *out = {address, pitch_bytes, extent.width, extent.height};
    return cudaSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(cudaMalloc3D), out, extent);
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocAsync(void** out, std::size_t size_bytes,
                                               cudaStream_t stream) {
  if (serve(ASKED(cudaMallocAsync, kDevice, device_of_runtime), out, size_bytes, stream)) {
    return cudaSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(cudaMallocAsync), out, size_bytes, stream);
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocAsync_ptsz(void** out, std::size_t size_bytes,
                                                    cudaStream_t stream) {
  if (serve(ASKED(cudaMallocAsync_ptsz, kDevice, device_of_runtime), out, size_bytes,
            per_thread(stream))) {
    return cudaSuccess;
  }
  return pass_on(NEXT_OF_RUNTIME(cudaMallocAsync_ptsz), out, size_bytes, stream);
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocFromPoolAsync(void** out, std::size_t size_bytes,
                                                       cudaMemPool_t pool, cudaStream_t stream) {
  if (serve_from_pool(ASKED(cudaMallocFromPoolAsync, kDevice, device_of_runtime), out, size_bytes,
                      pool, stream))
    return cudaSuccess;
  return pass_on(NEXT_OF_RUNTIME(cudaMallocFromPoolAsync), out, size_bytes, pool, stream);
}

UVMALLOC_INTERPOSE cudaError_t cudaMallocFromPoolAsync_ptsz(void** out, std::size_t size_bytes,
                                                            cudaMemPool_t pool,
                                                            cudaStream_t stream) {
  if (serve_from_pool(ASKED(cudaMallocFromPoolAsync_ptsz, kDevice, device_of_runtime), out,
                      size_bytes, pool, per_thread(stream)))
    return cudaSuccess;
  return pass_on(NEXT_OF_RUNTIME(cudaMallocFromPoolAsync_ptsz), out, size_bytes, pool, stream);
}

UVMALLOC_INTERPOSE cudaError_t cudaFree(void* address) {
  if (const auto answer = take_back<cudaError_t>(address)) return *answer;
  return pass_on(NEXT_OF_RUNTIME(cudaFree), address);
}

UVMALLOC_INTERPOSE cudaError_t cudaFreeHost(void* address) {
  if (const auto answer = take_back<cudaError_t>(address)) return *answer;
  return pass_on(NEXT_OF_RUNTIME(cudaFreeHost), address);
}

UVMALLOC_INTERPOSE cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  const auto answer = take_back<cudaError_t>(address, device_of_runtime, stream);
  return answer ? *answer : pass_on(NEXT_OF_RUNTIME(cudaFreeAsync), address, stream);
}

UVMALLOC_INTERPOSE cudaError_t cudaFreeAsync_ptsz(void* address, cudaStream_t stream) {
  const auto answer = take_back<cudaError_t>(address, device_of_runtime, per_thread(stream));
  return answer ? *answer : pass_on(NEXT_OF_RUNTIME(cudaFreeAsync_ptsz), address, stream);
}

// Attaching says which stream will use the memory, on devices that cannot share it with the host.
// Ours can, and the driver attaches whole spans only.
UVMALLOC_INTERPOSE cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void* address,
                                                        std::size_t size_bytes, unsigned flags) {
  if (find(address)) return cudaSuccess;
  return pass_on(NEXT_OF_RUNTIME(cudaStreamAttachMemAsync), stream, address, size_bytes, flags);
}
UVMALLOC_INTERPOSE cudaError_t cudaStreamAttachMemAsync_ptsz(cudaStream_t stream, void* address,
                                                             std::size_t size_bytes,
                                                             unsigned flags) {
  if (find(address)) return cudaSuccess;
  return pass_on(NEXT_OF_RUNTIME(cudaStreamAttachMemAsync_ptsz), stream, address, size_bytes,
                 flags);
}

UVMALLOC_INTERPOSE cudaError_t cudaDeviceSynchronize() {
  return synchronize(device_of_runtime, NEXT_OF_RUNTIME(cudaDeviceSynchronize));
}

// ---- the driver's

UVMALLOC_INTERPOSE CUresult cuMemAlloc_v2(CUdeviceptr* out, std::size_t size_bytes) {
  if (serve(ASKED(cuMemAlloc_v2, kDevice, device_of_driver), out, size_bytes)) {
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemAlloc_v2), out, size_bytes);
}

UVMALLOC_INTERPOSE CUresult cuMemAllocPitch_v2(CUdeviceptr* out, std::size_t* pitch_bytes,
                                               std::size_t width_bytes, std::size_t height,
                                               unsigned element_bytes) {
  const bool is_valid = element_bytes == 4 || element_bytes == 8 || element_bytes == 16;
  if (is_valid && serve_rows(ASKED(cuMemAllocPitch_v2, kDevice, device_of_driver), out, pitch_bytes,
                             width_bytes, height)) {
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemAllocPitch_v2), out, pitch_bytes, width_bytes, height,
                 element_bytes);
}

UVMALLOC_INTERPOSE CUresult cuMemAllocManaged(CUdeviceptr* out, std::size_t size_bytes,
                                              unsigned flags) {
  const bool is_served =
      flags == CU_MEM_ATTACH_GLOBAL
          ? serve(ASKED(cuMemAllocManaged, kManaged, device_of_driver), out, size_bytes)
          : leave(kCall_cuMemAllocManaged);
  if (is_served) return CUDA_SUCCESS;
  return pass_on(NEXT_OF_DRIVER(cuMemAllocManaged), out, size_bytes, flags);
}

UVMALLOC_INTERPOSE CUresult cuMemAllocHost_v2(void** out, std::size_t size_bytes) {
  if (serve(ASKED(cuMemAllocHost_v2, kPinned, device_of_driver), out, size_bytes)) {
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemAllocHost_v2), out, size_bytes);
}

UVMALLOC_INTERPOSE CUresult cuMemHostAlloc(void** out, std::size_t size_bytes, unsigned flags) {
  constexpr unsigned kKnown =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (((flags & ~kKnown) == 0 || leave(kCall_cuMemHostAlloc)) &&
      serve(ASKED(cuMemHostAlloc, kPinned, device_of_driver), out, size_bytes)) {
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemHostAlloc), out, size_bytes, flags);
}

UVMALLOC_INTERPOSE CUresult cuMemAllocAsync(CUdeviceptr* out, std::size_t size_bytes,
                                            CUstream stream) {
  if (serve(ASKED(cuMemAllocAsync, kDevice, device_of_driver), out, size_bytes, stream)) {
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemAllocAsync), out, size_bytes, stream);
}

UVMALLOC_INTERPOSE CUresult cuMemAllocAsync_ptsz(CUdeviceptr* out, std::size_t size_bytes,
                                                 CUstream stream) {
  if (serve(ASKED(cuMemAllocAsync_ptsz, kDevice, device_of_driver), out, size_bytes,
            per_thread(stream))) {
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemAllocAsync_ptsz), out, size_bytes, stream);
}

UVMALLOC_INTERPOSE CUresult cuMemFree_v2(CUdeviceptr address) {
  if (const auto answer = take_back<CUresult>(pointer_of(address))) return *answer;
  return pass_on(NEXT_OF_DRIVER(cuMemFree_v2), address);
}

UVMALLOC_INTERPOSE CUresult cuMemFreeHost(void* address) {
  if (const auto answer = take_back<CUresult>(address)) return *answer;
  return pass_on(NEXT_OF_DRIVER(cuMemFreeHost), address);
}

UVMALLOC_INTERPOSE CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  const auto answer = take_back<CUresult>(pointer_of(address), device_of_driver, stream);
  return answer ? *answer : pass_on(NEXT_OF_DRIVER(cuMemFreeAsync), address, stream);
}

UVMALLOC_INTERPOSE CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  const auto answer =
      take_back<CUresult>(pointer_of(address), device_of_driver, per_thread(stream));
  return answer ? *answer : pass_on(NEXT_OF_DRIVER(cuMemFreeAsync_ptsz), address, stream);
}

// The driver knows spans, not the blocks in them.
UVMALLOC_INTERPOSE CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size_bytes,
                                                    CUdeviceptr address) {
  if (const auto range = find(pointer_of(address))) {
    if (base != nullptr) *base = reinterpret_cast<CUdeviceptr>(range->base);
    if (size_bytes != nullptr) *size_bytes = range->size_bytes;
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemGetAddressRange_v2), base, size_bytes, address);
}

UVMALLOC_INTERPOSE CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* address,
                                                         unsigned flags) {
  if (out != nullptr && flags == 0 && is_pinned(address)) {
    *out = reinterpret_cast<CUdeviceptr>(address);
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemHostGetDevicePointer_v2), out, address, flags);
}

UVMALLOC_INTERPOSE CUresult cuMemHostGetFlags(unsigned* flags, void* address) {
  if (flags != nullptr && is_pinned(address)) {
    *flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
  }
  return pass_on(NEXT_OF_DRIVER(cuMemHostGetFlags), flags, address);
}

UVMALLOC_INTERPOSE CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address,
                                                   std::size_t size_bytes, unsigned flags) {
  if (find(pointer_of(address))) return CUDA_SUCCESS;
  return pass_on(NEXT_OF_DRIVER(cuStreamAttachMemAsync), stream, address, size_bytes, flags);
}
UVMALLOC_INTERPOSE CUresult cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr address,
                                                        std::size_t size_bytes, unsigned flags) {
  if (find(pointer_of(address))) return CUDA_SUCCESS;
  return pass_on(NEXT_OF_DRIVER(cuStreamAttachMemAsync_ptsz), stream, address, size_bytes, flags);
}

// Whether the memory is to be called device memory, although it is managed.
static bool hides_management(CUdeviceptr address) noexcept {
  if (!calls_memory_devices()) return false;
  const auto range = find(pointer_of(address));
  return range && range->kind == ServedMemory::Kind::kDevice;
}
static void hide_management(CUpointer_attribute attribute, void* answer) noexcept {
  if (attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED && answer != nullptr) {
    *static_cast<unsigned char*>(answer) = 0;
  }
}

UVMALLOC_INTERPOSE CUresult cuPointerGetAttribute(void* answer, CUpointer_attribute attribute,
                                                  CUdeviceptr address) {
  const CUresult result =
      pass_on(NEXT_OF_DRIVER(cuPointerGetAttribute), answer, attribute, address);
  if (result == CUDA_SUCCESS && hides_management(address)) hide_management(attribute, answer);
  return result;
}

UVMALLOC_INTERPOSE CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes,
                                                   void** answers, CUdeviceptr address) {
  const CUresult result =
      pass_on(NEXT_OF_DRIVER(cuPointerGetAttributes), count, attributes, answers, address);
  if (result == CUDA_SUCCESS && hides_management(address)) {
    for (unsigned i = 0; i < count; ++i) hide_management(attributes[i], answers[i]);
  }
  return result;
}

UVMALLOC_INTERPOSE CUresult cuCtxSynchronize() {
  return synchronize(device_of_driver, NEXT_OF_DRIVER(cuCtxSynchronize));
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
