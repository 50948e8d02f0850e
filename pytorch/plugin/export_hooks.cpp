#include "pytorch/plugin/export_hooks.hpp"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "allocator/process/process_allocator.hpp"
#include "pytorch/interpose/imported_function.hpp"
#include "pytorch/interpose/torch_hooks.hpp"
#include "pytorch/plugin/conversion.hpp"
#include "pytorch/plugin/early_blocks.hpp"
#include "pytorch/plugin/python_frames.hpp"
#include "pytorch/plugin/shared_block.hpp"
#include "pytorch/plugin/shared_storage.hpp"

namespace uvm::torch_plugin {
namespace {

void tensor_exported(const void* opaque) {
  CachingManagedAllocator* ours = process_allocator();
  const auto& tensor = *static_cast<const at::Tensor*>(opaque);
  if (!tensor.defined() || !tensor.has_storage()) return;
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  if (mark_early_exported(storage.data()) || ours == nullptr) return;
  // The export takes a writable pointer, so a shared storage first gets bytes of its own. Only
  // those bytes are marked, not the bytes of the other storage.
  if (storage.nbytes() != 0) note_exported(storage.mutable_data());
}

// These modules take addresses but do not keep them. torch.load only compares the address of each
// storage that it has read with null. load_safetensors and safetensors read into tensors that no
// other code has yet. safetensors also inspects the tensors that it saves.
constexpr const char* kKeepNoAddress[] = {"torch.serialization", "uvmalloc.loading",
                                          "safetensors.torch"};
// Modules of torch through which the modules above take addresses.
constexpr const char* kAskForOthers[] = {"torch.storage", "torch._tensor", "torch.overrides",
                                         "torch.utils._device"};

// The tensor whose address a function returns on this thread, or nullptr. See set_exporting().
thread_local const c10::TensorImpl* exporting = nullptr;

void pointer_exported(const void* pointer, const c10::StorageImpl* keeper = nullptr) {
  const bool is_early = EarlyBlocks::instance().contains(pointer);
  CachingManagedAllocator* ours = process_allocator();
  if (ours == nullptr && !is_early) return;
  if (!is_early) {
    const auto block = ours->find(pointer);
    if (!block || block->exported) return;
  }
  if (called_from(kKeepNoAddress, kAskForOthers) || mark_early_exported(pointer)) return;
  if (ours != nullptr) note_exported(pointer, keeper);
}

// Returns the pointer to export instead of `pointer`: the tensor `exporting` may get another block.
void* pointer_of_exporting(void* pointer) {
  if (exporting == nullptr || !exporting->has_storage()) {
    pointer_exported(pointer);
    return pointer;
  }
  const c10::StorageImpl& storage = *exporting->unsafe_storage().unsafeGetStorageImpl();
  const auto* const before = static_cast<const char*>(data_of(storage).get());
  pointer_exported(pointer, &storage);
  auto* const after = static_cast<char*>(data_of(storage).get());
  if (after == before) return pointer;
  pointer_exported(after, &storage);
  return after + (static_cast<const char*>(pointer) - before);
}

// Replaces PyLong_FromVoidPtr in torch's Python bindings. The bindings turn every address into a
// Python number with this function, also for Tensor.data_ptr().
void* python_number_of(void* pointer) {
  static const auto python =
      reinterpret_cast<void* (*)(void*)>(dlsym(RTLD_DEFAULT, "PyLong_FromVoidPtr"));
  return python(pointer_of_exporting(pointer));
}

// Replace PyLong_FromSsize_t and PyLong_FromSize_t there, which make all numbers. Only functions
// that set_exporting() announces return addresses by them.
void* python_number_of_signed(std::ptrdiff_t number) {
  static const auto python =
      reinterpret_cast<void* (*)(std::ptrdiff_t)>(dlsym(RTLD_DEFAULT, "PyLong_FromSsize_t"));
  if (exporting == nullptr) return python(number);
  return python(
      reinterpret_cast<std::ptrdiff_t>(pointer_of_exporting(reinterpret_cast<void*>(number))));
}
void* python_number_of_unsigned(std::size_t number) {
  static const auto python =
      reinterpret_cast<void* (*)(std::size_t)>(dlsym(RTLD_DEFAULT, "PyLong_FromSize_t"));
  if (exporting == nullptr) return python(number);
  return python(
      reinterpret_cast<std::size_t>(pointer_of_exporting(reinterpret_cast<void*>(number))));
}

const interpose::TorchHooks kHooks{
    .tensor_exported = tensor_exported,
    .set_exporting =
        [](const void* tensor) {
          return static_cast<const void*>(
              std::exchange(exporting, static_cast<const c10::TensorImpl*>(tensor)));
        },
    .materialize = materialize_core,
};

}  // namespace

void install_export_hooks() {
  uvmalloc_set_torch_hooks(&kHooks);
}

void watch_python_pointers() {
  // This may run before torch's Python bindings are loaded.
  static const auto is_python_there = [] {
    void* bindings = dlopen("libtorch_python.so", RTLD_NOLOAD | RTLD_LAZY);
    if (bindings != nullptr) dlclose(bindings);
    return bindings != nullptr;
  };
  static std::atomic<bool> watched{false};
  if (watched.load(std::memory_order_relaxed) || !is_python_there()) return;
  std::array<ImportedFunction, 3> numbers{{
      {"PyLong_FromVoidPtr", reinterpret_cast<void*>(&python_number_of)},
      {"PyLong_FromSsize_t", reinterpret_cast<void*>(&python_number_of_signed)},
      {"PyLong_FromSize_t", reinterpret_cast<void*>(&python_number_of_unsigned)},
  }};
  replace_imported_functions("libtorch_python.so", numbers);
  watched = true;
}

}  // namespace uvm::torch_plugin
