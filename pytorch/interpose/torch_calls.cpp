// Functions of torch that this library intercepts. They load the plugin, and report exports and
// first writes to it. Each function also forwards to torch's own function.
#include <atomic>
#include <stdexcept>

#include <fmt/format.h>

#include "preload/cuda/captured_operators.hpp"
#include "preload/interpose.hpp"
#include "preload/library_copies.hpp"
#include "pytorch/interpose/plugin_loader.hpp"
#include "pytorch/interpose/python_names.hpp"
#include "pytorch/interpose/torch_hooks.hpp"

namespace uvm::interpose {

std::atomic<const TorchHooks*> torch_hooks{nullptr};
std::atomic<void*> native_pinned_allocator{nullptr};

namespace {

// Returns the next definition of a C++ function of torch. Throws if no library has one.
template <class Function>
Function next_of_torch(const char* symbol, const char* library) {
  if (void* function = preload::next_definition(symbol, library))
    return reinterpret_cast<Function>(function);
  throw std::runtime_error(
      fmt::format("uvmalloc: torch's function {} was called, but no {} in this process has it",
                  symbol, library));
}

// Reports to the plugin, if it is loaded, that code outside torch gets the tensor's address.
void note_export(const void* tensor) {
  if (const auto* hooks = torch_hooks.load(std::memory_order_acquire)) {
    hooks->tensor_exported(tensor);
  }
}

}  // namespace
}  // namespace uvm::interpose

using uvm::interpose::torch_hooks;

UVMALLOC_INTERPOSE void uvmalloc_set_torch_hooks(const uvm::interpose::TorchHooks* hooks) {
  torch_hooks.store(hooks, std::memory_order_release);
}

UVMALLOC_INTERPOSE void uvmalloc_note_captured_operator(int device, void* stream,
                                                        const uvm::live::UseRange* uses,
                                                        std::size_t count, bool has_run) noexcept {
  using uvm::preload::cuda::CapturedOperators;
  uvm::preload::beside("a capture", [&] {
    CapturedOperators::instance().add(device, static_cast<CUstream>(stream), {uses, count},
                                      has_run);
  });
}

// The functions below have the names of the functions that they intercept.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

// Called when a library with CUDA code registers its kernels, by a static initialiser of the
// library. For torch, that is inside `import torch`, before any tensor exists.
UVMALLOC_INTERPOSE void __cudaRegisterFatBinaryEnd(void** handle) noexcept {
  static constinit uvm::preload::NextFunction<void (*)(void**)> next{"__cudaRegisterFatBinaryEnd",
                                                                     "libcudart.so"};
  if (const auto function = next.get()) function(handle);
  uvm::preload::beside("import torch", [] { uvm::interpose::load_torch_plugin_if_due(); });
}

// at::setHostAllocator(c10::DeviceType, at::HostAllocator*, unsigned char), of libtorch_cpu. Called
// by the static initialisers of torch's device libraries.
UVMALLOC_INTERPOSE void _ZN2at16setHostAllocatorEN3c1010DeviceTypeEPNS_13HostAllocatorEh(
    signed char device_type, void* allocator, unsigned char priority) {
  static const auto next =
      uvm::interpose::next_of_torch<void (*)(signed char, void*, unsigned char)>(
          "_ZN2at16setHostAllocatorEN3c1010DeviceTypeEPNS_13HostAllocatorEh", "libtorch_cpu.so");
  constexpr signed char kCuda = 1;  // c10::DeviceType::CUDA
  if (device_type == kCuda && priority == 0) {
    uvm::interpose::native_pinned_allocator.store(allocator, std::memory_order_release);
  }
  next(device_type, allocator, priority);
}

// libshm_init(const char*), of libshm. Called once, inside `import torch`, by the importing thread.
// That thread holds Python's lock and no lock of the loader.
UVMALLOC_INTERPOSE void _Z11libshm_initPKc(const char* manager) {
  static constinit uvm::preload::NextFunction<void (*)(const char*)> next{"_Z11libshm_initPKc",
                                                                          "libshm.so"};
  if (const auto function = next.get()) function(manager);
  if (uvm::preload::earlier_copy().empty()) uvm::add_python_names();
}

// torch::utils::tensor_to_numpy(at::Tensor const&, bool), of libtorch_python.
UVMALLOC_INTERPOSE void* _ZN5torch5utils15tensor_to_numpyERKN2at6TensorEb(const void* tensor,
                                                                          bool force) {
  static const auto next = uvm::interpose::next_of_torch<void* (*)(const void*, bool)>(
      "_ZN5torch5utils15tensor_to_numpyERKN2at6TensorEb", "libtorch_python.so");
  uvm::interpose::note_export(tensor);
  return next(tensor, force);
}

// at::toDLPack(at::Tensor const&), at::toDLPackVersioned(at::Tensor const&),
// at::toDLPackVersionedReadOnly(at::Tensor const&) and at::toDLPackNonOwning(at::Tensor const&,
// DLTensor*), all of libtorch_cpu. In newer versions, the last one has a third argument (bool).
UVMALLOC_INTERPOSE void* _ZN2at8toDLPackERKNS_6TensorE(const void* tensor) {
  static const auto next = uvm::interpose::next_of_torch<void* (*)(const void*)>(
      "_ZN2at8toDLPackERKNS_6TensorE", "libtorch_cpu.so");
  uvm::interpose::note_export(tensor);
  return next(tensor);
}

UVMALLOC_INTERPOSE void* _ZN2at17toDLPackVersionedERKNS_6TensorE(const void* tensor) {
  static const auto next = uvm::interpose::next_of_torch<void* (*)(const void*)>(
      "_ZN2at17toDLPackVersionedERKNS_6TensorE", "libtorch_cpu.so");
  uvm::interpose::note_export(tensor);
  return next(tensor);
}

UVMALLOC_INTERPOSE void* _ZN2at25toDLPackVersionedReadOnlyERKNS_6TensorE(const void* tensor) {
  static const auto next = uvm::interpose::next_of_torch<void* (*)(const void*)>(
      "_ZN2at25toDLPackVersionedReadOnlyERKNS_6TensorE", "libtorch_cpu.so");
  uvm::interpose::note_export(tensor);
  return next(tensor);
}

UVMALLOC_INTERPOSE void _ZN2at17toDLPackNonOwningERKNS_6TensorEP8DLTensor(const void* tensor,
                                                                          void* out) {
  static const auto next = uvm::interpose::next_of_torch<void (*)(const void*, void*)>(
      "_ZN2at17toDLPackNonOwningERKNS_6TensorEP8DLTensor", "libtorch_cpu.so");
  uvm::interpose::note_export(tensor);
  next(tensor, out);
}

UVMALLOC_INTERPOSE void _ZN2at17toDLPackNonOwningERKNS_6TensorEP8DLTensorb(const void* tensor,
                                                                           void* out,
                                                                           bool read_only) {
  static const auto next = uvm::interpose::next_of_torch<void (*)(const void*, void*, bool)>(
      "_ZN2at17toDLPackNonOwningERKNS_6TensorEP8DLTensorb", "libtorch_cpu.so");
  uvm::interpose::note_export(tensor);
  next(tensor, out, read_only);
}

// c10::impl::cow::materialize_cow_storage(c10::StorageImpl&), of libc10. Called for the first write
// to a shared storage.
UVMALLOC_INTERPOSE void _ZN3c104impl3cow23materialize_cow_storageERNS_11StorageImplE(
    void* storage) {
  static const auto next = uvm::interpose::next_of_torch<void (*)(void*)>(
      "_ZN3c104impl3cow23materialize_cow_storageERNS_11StorageImplE", "libc10.so");
  if (const auto* hooks = torch_hooks.load(std::memory_order_acquire)) {
    hooks->materialize(storage, next);
  } else {
    next(storage);
  }
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
