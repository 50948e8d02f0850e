// What the PyTorch plugin offers the preload library. The library is torch-free: tensors and
// storages are opaque here, and the plugin, once loaded, sets these functions. Until then, and in
// programs without torch, every interposed call goes straight through.
#pragma once

#include <atomic>

namespace uvm::interpose {

struct TorchHooks {
  // `tensor` is an at::Tensor whose memory gets a reader or writer outside torch (numpy, DLPack).
  void (*tensor_exported)(const void* tensor) = nullptr;
  // Runs `materialize(storage)`, the first write to a shared storage (a c10::StorageImpl), with
  // what surrounds it.
  void (*materialize)(void* storage, void (*materialize)(void* storage)) = nullptr;
  // The capture of `graph`, an at::cuda::CUDAGraph, is over. It is about to be launched. It goes.
  void (*graph_captured)(const void* graph) = nullptr;
  void (*graph_replayed)(const void* graph) = nullptr;
  void (*graph_destroyed)(const void* graph) = nullptr;
};

// Set once, before the first tensor exists; never unset.
extern std::atomic<const TorchHooks*> torch_hooks;

// The at::HostAllocator that torch itself registered for CUDA, whichever was registered last at the
// default priority; nullptr: none yet. Torch offers no way to ask for one that another has
// outranked.
extern std::atomic<void*> native_pinned_allocator;

}  // namespace uvm::interpose

// For the plugin: `hooks` must live for ever.
extern "C" __attribute__((visibility("default"))) void uvmalloc_set_torch_hooks(
    const uvm::interpose::TorchHooks* hooks);

// For Python (pytorch/python/uvmalloc). A copy of this library that is not the process's first
// leaves the first two to that one.
//
// What a preloaded library does inside `import torch`, for one that is loaded when torch has been
// imported: does nothing unless PYTORCH_ENABLE_UNIFIED_MEMORY switches uvmalloc on. Whether the
// plugin is in place now; where it should be and is not, one line says why.
extern "C" __attribute__((visibility("default"))) int uvmalloc_load_in_torch() noexcept;
// Switches unified memory on: makes this process's allocator and loads the plugin. Returns nullptr,
// or in one line why it cannot be, which lives for ever.
extern "C" __attribute__((visibility("default"))) const char* uvmalloc_enable_in_torch() noexcept;
// 1: the plugin is loaded and in place. Initialises nothing, as opposed to uvmalloc_is_enabled().
extern "C" __attribute__((visibility("default"))) int uvmalloc_is_in_torch() noexcept;
