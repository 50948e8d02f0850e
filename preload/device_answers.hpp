// What interposed calls that allocate nothing are told about this process's allocator, whichever
// interface they belong to. Thread-safe.
#pragma once

#include <cstddef>

namespace uvm::preload {

// Corrects what the driver says is free of the current device's memory, once unified memory is on.
// `current_device` is the library's own question for it; -1: there is none. A program whose memory
// is not served here gets the driver's answer. May throw std::bad_alloc.
void tell_free_memory(std::size_t* free_bytes, const std::size_t* total_bytes,
                      int (*current_device)() noexcept);

// Before a stream is destroyed: its handle may come again.
void note_stream_gone(void* stream) noexcept;
// Default streams stay.
bool is_default_stream(const void* stream) noexcept;

}  // namespace uvm::preload
