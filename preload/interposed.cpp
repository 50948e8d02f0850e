// The functions that other libraries call through us when libuvmalloc.so is preloaded. Each
// forwards to the library that it really belongs to; none does anything before torch's plugin is
// loaded. In a process that has neither CUDA nor torch nobody calls them.
#include <dlfcn.h>
#include <link.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstring>
#include <exception>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>

#include <uvmalloc/allocator/process/process_allocator.hpp>
#include <uvmalloc/preload/library_copies.hpp>
#include <uvmalloc/preload/registered_memory.hpp>
#include <uvmalloc/preload/torch_hooks.hpp>
#include <uvmalloc/preload/torch_loader.hpp>
#include <uvmalloc/pytorch/loader/python_names.hpp>
#include <uvmalloc/runtime/log.hpp>

#define UVMALLOC_INTERPOSE extern "C" __attribute__((visibility("default")))

namespace uvm::preload {

std::atomic<const TorchHooks*> torch_hooks{nullptr};
std::atomic<void*> native_pinned_allocator{nullptr};

namespace {

// Finds a mapped library by the beginning of its file's name. Needs no memory: the callback of
// dl_iterate_phdr must not throw.
struct LibrarySearch {
  const char* library;
  char path[PATH_MAX] = "";

  static int look(dl_phdr_info* info, std::size_t, void* context) noexcept {
    auto* search = static_cast<LibrarySearch*>(context);
    const char* slash = std::strrchr(info->dlpi_name, '/');
    const char* name = slash != nullptr ? slash + 1 : info->dlpi_name;
    if (std::strncmp(name, search->library, std::strlen(search->library)) != 0) return 0;
    if (std::strlen(info->dlpi_name) >= sizeof search->path) return 0;
    std::strcpy(search->path, info->dlpi_name);
    return 1;
  }
};

// The next definition of `symbol`: in the global scope after us, else in a mapped library whose
// file name starts with `library`. Libraries opened privately (by a Python import) are in no global
// scope.
void* next_definition(const char* symbol, const char* library) noexcept {
  if (void* found = dlsym(RTLD_NEXT, symbol)) return found;
  LibrarySearch search{library};
  dl_iterate_phdr(LibrarySearch::look, &search);
  if (search.path[0] == '\0') return nullptr;
  void* handle = dlopen(search.path, RTLD_NOLOAD | RTLD_LAZY);
  return handle != nullptr ? dlsym(handle, symbol) : nullptr;
}

// Looked up on first use; the libraries that define these are never unloaded. nullptr: there is
// none.
template <class Function>
Function real(const char* symbol, const char* library) noexcept {
  return reinterpret_cast<Function>(next_definition(symbol, library));
}

// The same for a C++ function of torch, which may throw: nobody can do without its result.
template <class Function>
Function real_of_torch(const char* symbol, const char* library) {
  if (auto function = real<Function>(symbol, library)) return function;
  throw std::runtime_error(
      fmt::format("uvmalloc: {} is called, and no {} in this process has it", symbol, library));
}

// What we do beside a call of C that is passed on. Where it fails, for want of memory, the call
// goes on as without us.
template <class Body>
void beside(const char* call, Body body) noexcept {
  try {
    body();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "{} goes on without uvmalloc: {}", call, error.what());
  }
}

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
  constexpr int kManaged = 3;       // cudaMemoryTypeManaged
  if (RegisteredMemory::instance().contains(address)) {
    *answer = {kHost, answer->device, address, address};
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

// Tells the plugin, if there is one, that the tensor's memory gets a user outside torch.
void note_export(const void* tensor) {
  if (const auto* hooks = torch_hooks.load(std::memory_order_acquire)) {
    hooks->tensor_exported(tensor);
  }
}

}  // namespace
}  // namespace uvm::preload

using uvm::preload::torch_hooks;

UVMALLOC_INTERPOSE void uvmalloc_set_torch_hooks(const uvm::preload::TorchHooks* hooks) {
  torch_hooks.store(hooks, std::memory_order_release);
}

// The names are the interposed functions' own.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

// Called by the static initialisers of every library with CUDA code, once its kernels are
// registered: inside `import torch`, before any tensor exists.
UVMALLOC_INTERPOSE void __cudaRegisterFatBinaryEnd(void** handle) noexcept {
  static const auto next =
      uvm::preload::real<void (*)(void**)>("__cudaRegisterFatBinaryEnd", "libcudart.so");
  if (next != nullptr) next(handle);
  uvm::preload::beside("import torch", [] { uvm::preload::load_torch_plugin_if_due(); });
}

// Results are cudaError_t and CUresult, which agree on 0 for success and 3 for a library that is
// not there.
UVMALLOC_INTERPOSE int cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) noexcept {
  static const auto next =
      uvm::preload::real<int (*)(std::size_t*, std::size_t*)>("cudaMemGetInfo", "libcudart.so");
  static const auto device = uvm::preload::real<int (*)(int*)>("cudaGetDevice", "libcudart.so");
  const int result = next != nullptr ? next(free_bytes, total_bytes) : 3;
  if (result == 0) {
    uvm::preload::beside("cudaMemGetInfo",
                         [&] { uvm::preload::tell_free_memory(free_bytes, total_bytes, device); });
  }
  return result;
}

UVMALLOC_INTERPOSE int cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) noexcept {
  static const auto next =
      uvm::preload::real<int (*)(std::size_t*, std::size_t*)>("cuMemGetInfo_v2", "libcuda.so");
  static const auto device = uvm::preload::real<int (*)(int*)>("cuCtxGetDevice", "libcuda.so");
  const int result = next != nullptr ? next(free_bytes, total_bytes) : 3;
  if (result == 0) {
    uvm::preload::beside("cuMemGetInfo_v2",
                         [&] { uvm::preload::tell_free_memory(free_bytes, total_bytes, device); });
  }
  return result;
}

UVMALLOC_INTERPOSE int cudaGetDeviceCount(int* count) noexcept {
  static const auto next = uvm::preload::real<int (*)(int*)>("cudaGetDeviceCount", "libcudart.so");
  const int result = next != nullptr ? next(count) : 3;
  uvm::preload::beside("cudaGetDeviceCount", [&] { uvm::preload::explain_device_count(result); });
  return result;
}

UVMALLOC_INTERPOSE int cudaPointerGetAttributes(uvm::preload::PointerAnswer* answer,
                                                const void* address) noexcept {
  static const auto next = uvm::preload::real<int (*)(uvm::preload::PointerAnswer*, const void*)>(
      "cudaPointerGetAttributes", "libcudart.so");
  const int result = next != nullptr ? next(answer, address) : 3;
  if (result == 0) {
    uvm::preload::beside("cudaPointerGetAttributes",
                         [&] { uvm::preload::tell_place(address, answer); });
  }
  return result;
}

UVMALLOC_INTERPOSE int cudaHostRegister(void* address, std::size_t size_bytes,
                                        unsigned flags) noexcept {
  static const auto next =
      uvm::preload::real<int (*)(void*, std::size_t, unsigned)>("cudaHostRegister", "libcudart.so");
  std::optional<int> result;
  uvm::preload::beside("cudaHostRegister", [&] {
    result = uvm::preload::RegisteredMemory::instance().add(address, size_bytes);
  });
  if (result) return *result;
  return next != nullptr ? next(address, size_bytes, flags) : 3;
}

UVMALLOC_INTERPOSE int cudaHostUnregister(void* address) noexcept {
  static const auto next = uvm::preload::real<int (*)(void*)>("cudaHostUnregister", "libcudart.so");
  bool was_ours = false;
  uvm::preload::beside("cudaHostUnregister", [&] {
    was_ours = uvm::preload::RegisteredMemory::instance().remove(address);
  });
  if (was_ours) return 0;
  return next != nullptr ? next(address) : 3;
}

UVMALLOC_INTERPOSE int cudaHostGetDevicePointer(void** out, void* address,
                                                unsigned flags) noexcept {
  static const auto next = uvm::preload::real<int (*)(void**, void*, unsigned)>(
      "cudaHostGetDevicePointer", "libcudart.so");
  bool is_ours = false;
  uvm::preload::beside("cudaHostGetDevicePointer", [&] {
    is_ours = out != nullptr && uvm::preload::RegisteredMemory::instance().contains(address);
  });
  if (is_ours) {
    *out = address;
    return 0;
  }
  return next != nullptr ? next(out, address, flags) : 3;
}

UVMALLOC_INTERPOSE int cudaStreamDestroy(void* stream) noexcept {
  static const auto next = uvm::preload::real<int (*)(void*)>("cudaStreamDestroy", "libcudart.so");
  uvm::preload::note_stream_gone(stream);
  return next != nullptr ? next(stream) : 3;
}

UVMALLOC_INTERPOSE int cuStreamDestroy_v2(void* stream) noexcept {
  static const auto next = uvm::preload::real<int (*)(void*)>("cuStreamDestroy_v2", "libcuda.so");
  uvm::preload::note_stream_gone(stream);
  return next != nullptr ? next(stream) : 3;
}

// at::setHostAllocator(c10::DeviceType, at::HostAllocator*, unsigned char), of libtorch_cpu: called
// by the static initialisers of torch's device libraries.
UVMALLOC_INTERPOSE void _ZN2at16setHostAllocatorEN3c1010DeviceTypeEPNS_13HostAllocatorEh(
    signed char device_type, void* allocator, unsigned char priority) {
  static const auto next = uvm::preload::real_of_torch<void (*)(signed char, void*, unsigned char)>(
      "_ZN2at16setHostAllocatorEN3c1010DeviceTypeEPNS_13HostAllocatorEh", "libtorch_cpu.so");
  constexpr signed char kCuda = 1;  // c10::DeviceType::CUDA
  if (device_type == kCuda && priority == 0) {
    uvm::preload::native_pinned_allocator.store(allocator, std::memory_order_release);
  }
  next(device_type, allocator, priority);
}

// libshm_init(const char*), of libshm: called inside `import torch` by the thread that imports,
// once, with Python's lock and none of the loader's.
UVMALLOC_INTERPOSE void _Z11libshm_initPKc(const char* manager) {
  static const auto next =
      uvm::preload::real<void (*)(const char*)>("_Z11libshm_initPKc", "libshm.so");
  if (next != nullptr) next(manager);
  if (uvm::preload::earlier_copy().empty()) uvm::add_python_names();
}

// torch::utils::tensor_to_numpy(at::Tensor const&, bool), of libtorch_python.
UVMALLOC_INTERPOSE void* _ZN5torch5utils15tensor_to_numpyERKN2at6TensorEb(const void* tensor,
                                                                          bool force) {
  static const auto next = uvm::preload::real_of_torch<void* (*)(const void*, bool)>(
      "_ZN5torch5utils15tensor_to_numpyERKN2at6TensorEb", "libtorch_python.so");
  uvm::preload::note_export(tensor);
  return next(tensor, force);
}

// at::toDLPack(at::Tensor const&), at::toDLPackVersioned(at::Tensor const&),
// at::toDLPackVersionedReadOnly(at::Tensor const&) and at::toDLPackNonOwning(at::Tensor const&,
// DLTensor*), in newer versions with a third argument (bool), of libtorch_cpu.
UVMALLOC_INTERPOSE void* _ZN2at8toDLPackERKNS_6TensorE(const void* tensor) {
  static const auto next = uvm::preload::real_of_torch<void* (*)(const void*)>(
      "_ZN2at8toDLPackERKNS_6TensorE", "libtorch_cpu.so");
  uvm::preload::note_export(tensor);
  return next(tensor);
}

UVMALLOC_INTERPOSE void* _ZN2at17toDLPackVersionedERKNS_6TensorE(const void* tensor) {
  static const auto next = uvm::preload::real_of_torch<void* (*)(const void*)>(
      "_ZN2at17toDLPackVersionedERKNS_6TensorE", "libtorch_cpu.so");
  uvm::preload::note_export(tensor);
  return next(tensor);
}

UVMALLOC_INTERPOSE void* _ZN2at25toDLPackVersionedReadOnlyERKNS_6TensorE(const void* tensor) {
  static const auto next = uvm::preload::real_of_torch<void* (*)(const void*)>(
      "_ZN2at25toDLPackVersionedReadOnlyERKNS_6TensorE", "libtorch_cpu.so");
  uvm::preload::note_export(tensor);
  return next(tensor);
}

UVMALLOC_INTERPOSE void _ZN2at17toDLPackNonOwningERKNS_6TensorEP8DLTensor(const void* tensor,
                                                                          void* out) {
  static const auto next = uvm::preload::real_of_torch<void (*)(const void*, void*)>(
      "_ZN2at17toDLPackNonOwningERKNS_6TensorEP8DLTensor", "libtorch_cpu.so");
  uvm::preload::note_export(tensor);
  next(tensor, out);
}

UVMALLOC_INTERPOSE void _ZN2at17toDLPackNonOwningERKNS_6TensorEP8DLTensorb(const void* tensor,
                                                                           void* out,
                                                                           bool read_only) {
  static const auto next = uvm::preload::real_of_torch<void (*)(const void*, void*, bool)>(
      "_ZN2at17toDLPackNonOwningERKNS_6TensorEP8DLTensorb", "libtorch_cpu.so");
  uvm::preload::note_export(tensor);
  next(tensor, out, read_only);
}

// c10::impl::cow::materialize_cow_storage(c10::StorageImpl&), of libc10: the first write to a
// shared storage.
UVMALLOC_INTERPOSE void _ZN3c104impl3cow23materialize_cow_storageERNS_11StorageImplE(
    void* storage) {
  static const auto next = uvm::preload::real_of_torch<void (*)(void*)>(
      "_ZN3c104impl3cow23materialize_cow_storageERNS_11StorageImplE", "libc10.so");
  if (const auto* hooks = torch_hooks.load(std::memory_order_acquire)) {
    hooks->materialize(storage, next);
  } else {
    next(storage);
  }
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
