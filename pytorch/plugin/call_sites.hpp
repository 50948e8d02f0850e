// Records in the trace where each block was allocated (UVMALLOC_CALL_SITES): the innermost Python
// frame outside torch. In a backward pass, it also names the autograd node that runs. Thread-safe.
#pragma once

#include <uvmalloc/tracing.hpp>

namespace uvm::torch_plugin {

void name_call_site(CachingManagedAllocator& allocator, const void* address) noexcept;

// Call it for a block that was just allocated. Costs one load if call sites are off. Otherwise it
// takes Python's global interpreter lock, so the caller must hold no lock of the allocator.
inline void trace_call_site(CachingManagedAllocator& allocator, const void* address) noexcept {
  if (allocator.tracing().wants_call_sites()) [[unlikely]]
    name_call_site(allocator, address);
}

}  // namespace uvm::torch_plugin
