// Answers intercepted calls that allocate nothing with this process's allocator, for any vendor.
// Thread-safe.
#pragma once

#include <cstddef>
#include <optional>

namespace uvm::preload {

// Corrects the driver's count of free bytes on the current device, if unified memory is on.
// `current_device` queries the interface and returns -1 if there is no device. Does not change the
// count if this process has no allocator. May throw std::bad_alloc.
void tell_free_memory(std::size_t* free_bytes, const std::size_t* total_bytes,
                      int (*current_device)() noexcept);

// The memory that the host shares with all devices of the machine, and the part that this process
// has touched through uvmalloc.
struct SharedMemory {
  std::size_t total_bytes;
  std::size_t free_bytes;
  std::size_t own_bytes;
};
// Returns nullopt if unified memory is off, or if the process uses a device with its own memory.
// Does not initialise the driver; before the process uses a device, the figures come from the
// kernel.
std::optional<SharedMemory> shared_memory();

// Call before a stream is destroyed: a new stream may get the same handle.
void note_stream_gone(void* stream) noexcept;
// Returns whether the stream is a default stream. Default streams are never destroyed.
bool is_default_stream(const void* stream) noexcept;

}  // namespace uvm::preload
