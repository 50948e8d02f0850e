// Call sites in the trace: the place in the program that made a block (UVMALLOC_CALL_SITES). That
// is the innermost Python frame outside torch, and in a backward pass the operator whose gradient
// is computed. Free functions, thread-safe.
#pragma once

#include <uvmalloc/allocator.hpp>

namespace uvm::torch_plugin {

void name_call_site(CachingManagedAllocator& allocator, const void* address) noexcept;

// For a block that was just allocated. One load where no call sites are asked for. Else it takes
// Python's global interpreter lock, so the caller holds no lock of ours.
inline void trace_call_site(CachingManagedAllocator& allocator, const void* address) noexcept {
  if (allocator.wants_call_sites()) [[unlikely]]
    name_call_site(allocator, address);
}

}  // namespace uvm::torch_plugin
