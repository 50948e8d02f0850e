// Reports changes to device memory that the owner of the memory did not cause by a call, so that a
// program can keep a history of its memory. The observer outlives the allocator. It is called under
// the state lock, so it must not call the allocator, or wait for a thread that does.
#pragma once

#include <cstddef>

#include "allocator/heap/stream_key.hpp"

namespace uvm {

class MemoryObserver {
 public:
  virtual ~MemoryObserver() = default;

  // Called when whole 2 MiB pages join the pools of a stream, or leave them.
  virtual void pages_added(const StreamKey& pool, void* base, std::size_t size_bytes) noexcept = 0;
  virtual void pages_removed(const StreamKey& pool, void* base,
                             std::size_t size_bytes) noexcept = 0;

  // Called when a freed block that other streams may have used becomes available
  // (BlockDescription::waits_when_freed).
  virtual void free_completed(const StreamKey& pool, void* address,
                              std::size_t requested_bytes) noexcept = 0;
};

}  // namespace uvm
