// Answers of this process's allocator for intercepted calls that allocate nothing, of any vendor.
// Thread-safe.
#pragma once

#include <cstddef>

namespace uvm::preload {

// Corrects the driver's count of free bytes on the current device, if unified memory is on.
// `current_device` is the interface's query; -1: no device. If this process has no allocator,
// leaves the driver's answer. May throw std::bad_alloc.
void tell_free_memory(std::size_t* free_bytes, const std::size_t* total_bytes,
                      int (*current_device)() noexcept);

// Call before a stream is destroyed: a new stream may get the same handle.
void note_stream_gone(void* stream) noexcept;
// Default streams are never destroyed.
bool is_default_stream(const void* stream) noexcept;

}  // namespace uvm::preload
