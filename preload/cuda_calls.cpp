// The functions of CUDA that other libraries call through us when libuvmalloc.so is preloaded. Each
// forwards to the library that it belongs to. In a process without CUDA nobody calls them.
#include <sys/types.h>
#include <unistd.h>

#include <optional>

#include <fmt/format.h>

#include <uvmalloc/allocator/process/process_allocator.hpp>
#include <uvmalloc/preload/interpose.hpp>
#include <uvmalloc/preload/registered_memory.hpp>
#include <uvmalloc/preload/served_memory.hpp>
#include <uvmalloc/runtime/log.hpp>

namespace uvm::preload {

namespace {

// Corrects what the driver says is free of the current device's memory, once unified memory is on.
// `current_device` is the library's own question for it. A program whose memory is not served here
// gets the driver's answer.
void tell_free_memory(std::size_t* free_bytes, const std::size_t* total_bytes,
                      int (*current_device)(int*)) {
  CachingManagedAllocator* ours = process_allocator();
  if (ours == nullptr && is_framework_installed() &&
      process_configuration().configuration.enabled) {
    ours = activate_process_allocator().allocator;
  }
  int device = -1;
  if (ours == nullptr || ours->in_forked_child() || current_device == nullptr ||
      current_device(&device) != 0 || device >= ours->runtime().device_count()) {
    return;
  }
  *free_bytes = ours->free_bytes(device, {*free_bytes, *total_bytes});
}

// The beginning of cudaPointerAttributes, as all its versions have it.
struct PointerAnswer {
  int type;
  int device;
  const void* device_pointer;
  const void* host_pointer;
};

// The driver does not know ordinary memory that a device uses, and torch takes no address for a
// device's that the driver does not know. To programs it is what managed memory is.
void tell_place(const void* address, PointerAnswer* answer) {
  constexpr int kUnregistered = 0;  // cudaMemoryTypeUnregistered
  constexpr int kHost = 1;          // cudaMemoryTypeHost
  constexpr int kDevice = 2;        // cudaMemoryTypeDevice
  constexpr int kManaged = 3;       // cudaMemoryTypeManaged
  if (RegisteredMemory::instance().contains(address)) {
    *answer = {kHost, answer->device, address, address};
    return;
  }
  if (calls_memory_devices()) {
    ServedMemory::Range range;
    if (ServedMemory::existing()->find(address, &range) &&
        range.kind == ServedMemory::Kind::kDevice) {
      *answer = {kDevice, answer->device, address, nullptr};
    }
    return;
  }
  if (answer->type != kUnregistered) return;
  const CachingManagedAllocator* ours = process_allocator();
  if (ours == nullptr || ours->host_backing() == HostBacking::kManaged) return;
  if (ours->in_forked_child()) return;
  const auto block = ours->find(address);
  if (block && block->live && block->location.is_device()) {
    *answer = {kManaged, block->location.index, address, address};
  }
}

// Before a stream is destroyed: its handle may come again. It belongs to one device, which the
// handle alone does not tell. Default streams stay.
void note_stream_gone(void* stream) noexcept {
  constexpr std::uintptr_t kLastDefault = 2;  // of the legacy and the per-thread one
  CachingManagedAllocator* ours = process_allocator();
  if (ours == nullptr || ours->in_forked_child()) return;
  if (reinterpret_cast<std::uintptr_t>(stream) <= kLastDefault) return;
  for (int device = 0; device < ours->runtime().device_count(); ++device) {
    beside("the end of a stream", [&] { ours->forget_stream(device, stream); });
  }
}

// The process that loaded this library; its forked children have other numbers.
const pid_t kLoadedIn = getpid();

// `answer` is that of cudaGetDeviceCount, with which programs find out whether there is CUDA. Where
// they cannot have it, one line says why.
void explain_device_count(int answer) {
  constexpr int kInitializationError = 3;  // cudaErrorInitializationError
  if (answer == 0 || !is_framework_installed()) return;
  const CachingManagedAllocator* ours = process_allocator();
  // A driver that was initialised in a parent refuses to be in its children.
  const bool is_forked = (ours != nullptr && ours->in_forked_child()) ||
                         (answer == kInitializationError && getpid() != kLoadedIn);
  if (!is_forked) {
    if (ours == nullptr) activate_process_allocator();
    return;
  }
  log_once(LogLevel::kError, "forked",
           fmt::format(
               "CUDA cannot be used in this process: it was forked after CUDA had been initialised "
               "in its parent{}. Fork before that, or start the process with spawn or forkserver",
               process_configuration().configuration.cpu_tensors == CpuTensors::kManaged
                   ? " (UVMALLOC_CPU=managed initialises CUDA with the first large CPU tensor)"
                   : ""));
}

}  // namespace
}  // namespace uvm::preload

// The names are the interposed functions' own.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

// Results are cudaError_t and CUresult, which agree on 0 for success.
UVMALLOC_INTERPOSE int cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) noexcept {
  static const auto next = uvm::preload::next_function<int (*)(std::size_t*, std::size_t*)>(
      "cudaMemGetInfo", "libcudart.so");
  static const auto device =
      uvm::preload::next_function<int (*)(int*)>("cudaGetDevice", "libcudart.so");
  const int result = uvm::preload::pass_on(next, free_bytes, total_bytes);
  if (result == 0) {
    uvm::preload::beside("cudaMemGetInfo",
                         [&] { uvm::preload::tell_free_memory(free_bytes, total_bytes, device); });
  }
  return result;
}

UVMALLOC_INTERPOSE int cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) noexcept {
  static const auto next = uvm::preload::next_function<int (*)(std::size_t*, std::size_t*)>(
      "cuMemGetInfo_v2", "libcuda.so");
  static const auto device =
      uvm::preload::next_function<int (*)(int*)>("cuCtxGetDevice", "libcuda.so");
  const int result = uvm::preload::pass_on(next, free_bytes, total_bytes);
  if (result == 0) {
    uvm::preload::beside("cuMemGetInfo_v2",
                         [&] { uvm::preload::tell_free_memory(free_bytes, total_bytes, device); });
  }
  return result;
}

UVMALLOC_INTERPOSE int cudaGetDeviceCount(int* count) noexcept {
  static const auto next =
      uvm::preload::next_function<int (*)(int*)>("cudaGetDeviceCount", "libcudart.so");
  const int result = uvm::preload::pass_on(next, count);
  uvm::preload::beside("cudaGetDeviceCount", [&] { uvm::preload::explain_device_count(result); });
  return result;
}

UVMALLOC_INTERPOSE int cudaPointerGetAttributes(uvm::preload::PointerAnswer* answer,
                                                const void* address) noexcept {
  static const auto next =
      uvm::preload::next_function<int (*)(uvm::preload::PointerAnswer*, const void*)>(
          "cudaPointerGetAttributes", "libcudart.so");
  const int result = uvm::preload::pass_on(next, answer, address);
  if (result == 0) {
    uvm::preload::beside("cudaPointerGetAttributes",
                         [&] { uvm::preload::tell_place(address, answer); });
  }
  return result;
}

UVMALLOC_INTERPOSE int cudaHostRegister(void* address, std::size_t size_bytes,
                                        unsigned flags) noexcept {
  static const auto next = uvm::preload::next_function<int (*)(void*, std::size_t, unsigned)>(
      "cudaHostRegister", "libcudart.so");
  std::optional<int> result;
  uvm::preload::beside("cudaHostRegister", [&] {
    result = uvm::preload::RegisteredMemory::instance().add(address, size_bytes);
  });
  if (result) return *result;
  return uvm::preload::pass_on(next, address, size_bytes, flags);
}

UVMALLOC_INTERPOSE int cudaHostUnregister(void* address) noexcept {
  static const auto next =
      uvm::preload::next_function<int (*)(void*)>("cudaHostUnregister", "libcudart.so");
  bool was_ours = false;
  uvm::preload::beside("cudaHostUnregister", [&] {
    was_ours = uvm::preload::RegisteredMemory::instance().remove(address);
  });
  if (was_ours) return 0;
  return uvm::preload::pass_on(next, address);
}

UVMALLOC_INTERPOSE int cudaHostGetDevicePointer(void** out, void* address,
                                                unsigned flags) noexcept {
  static const auto next = uvm::preload::next_function<int (*)(void**, void*, unsigned)>(
      "cudaHostGetDevicePointer", "libcudart.so");
  bool is_ours = false;
  uvm::preload::beside("cudaHostGetDevicePointer", [&] {
    is_ours = out != nullptr && uvm::preload::RegisteredMemory::instance().contains(address);
  });
  if (is_ours) {
    *out = address;
    return 0;
  }
  return uvm::preload::pass_on(next, out, address, flags);
}

UVMALLOC_INTERPOSE int cudaStreamDestroy(void* stream) noexcept {
  static const auto next =
      uvm::preload::next_function<int (*)(void*)>("cudaStreamDestroy", "libcudart.so");
  uvm::preload::note_stream_gone(stream);
  return uvm::preload::pass_on(next, stream);
}

UVMALLOC_INTERPOSE int cuStreamDestroy_v2(void* stream) noexcept {
  static const auto next =
      uvm::preload::next_function<int (*)(void*)>("cuStreamDestroy_v2", "libcuda.so");
  uvm::preload::note_stream_gone(stream);
  return uvm::preload::pass_on(next, stream);
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
