// Functions of the PyTorch plugin that the preload library calls. The library is built without
// torch, so tensors and storages are opaque here. The plugin sets the functions when it is loaded.
// Before that, and in programs without torch, intercepted calls are only forwarded.
#pragma once

#include <atomic>
#include <cstddef>

#include <uvmalloc/use_range.hpp>

namespace uvm::interpose {

struct TorchHooks {
  // Called when code outside torch (numpy, DLPack) gets the memory of `tensor`, an at::Tensor.
  void (*tensor_exported)(const void* tensor) = nullptr;
  // Called before and after a function that returns the address of `tensor`, a c10::TensorImpl,
  // without taking its memory for writing. Returns the tensor of the call around it, or nullptr.
  const void* (*set_exporting)(const void* tensor) = nullptr;
  // Called at the first write to a shared storage, a c10::StorageImpl. Either calls
  // `materialize(storage)`, which is torch's own function, or does the work of that function.
  void (*materialize)(void* storage, void (*materialize)(void* storage)) = nullptr;
};

// Set once, when the plugin is installed; never unset.
extern std::atomic<const TorchHooks*> torch_hooks;

// Torch's own at::HostAllocator for CUDA: the last one registered at the default priority, or
// nullptr. Torch does not return it once an allocator with a higher priority is registered.
extern std::atomic<void*> native_pinned_allocator;

}  // namespace uvm::interpose

// Called by the plugin. `hooks` must live for ever.
extern "C" __attribute__((visibility("default"))) void uvmalloc_set_torch_hooks(
    const uvm::interpose::TorchHooks* hooks);

// Called by the plugin before an operator adds its kernels to the graph that is captured on the
// stream, with the ranges of its arguments, and again when it `has_run`, with the ranges of its
// results. Launches of the graph run no operator, so they report these ranges
// (preload/cuda/captured_operators.hpp).
extern "C" __attribute__((visibility("default"))) void uvmalloc_note_captured_operator(
    int device, void* stream, const uvm::live::UseRange* uses, std::size_t count,
    bool has_run) noexcept;

// The functions below are called from Python (pytorch/python/uvmalloc). In a second copy of this
// library, the first two forward to the first copy.
//
// Loads the plugin when torch has been imported, as a preloaded library does inside `import torch`.
// Does nothing unless PYTORCH_ENABLE_UNIFIED_MEMORY switches uvmalloc on. Returns whether the
// plugin is in place. If the plugin cannot be loaded, logs one line that says why.
extern "C" __attribute__((visibility("default"))) int uvmalloc_load_in_torch() noexcept;
// Switches unified memory on: creates this process's allocator and loads the plugin. Returns
// nullptr, or one line that says why it failed. The line lives for ever.
extern "C" __attribute__((visibility("default"))) const char* uvmalloc_enable_in_torch() noexcept;
// Returns 1 if the plugin is in place. Unlike uvmalloc_is_enabled(), it initialises nothing.
extern "C" __attribute__((visibility("default"))) int uvmalloc_is_in_torch() noexcept;
