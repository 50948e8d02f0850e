// Where a StorageArena has its memory from: an allocator, a device, or malloc. Given as an
// argument, so that storage/ knows none of them.
#pragma once

#include <cstddef>

namespace uvm {

class ArenaMemory {
 public:
  virtual ~ArenaMemory() = default;
  // Memory for `size_bytes` (at least 1), aligned as the plan says. std::bad_alloc without memory.
  virtual void* allocate(std::size_t size_bytes, std::size_t alignment_bytes) = 0;
  virtual void free(void* address, std::size_t size_bytes) noexcept = 0;
};

}  // namespace uvm
