// Supplies the memory of a StorageArena, from an allocator, a device or malloc. The caller passes
// this object in, so pipelines/ depends on no allocator or device.
#pragma once

#include <cstddef>

namespace uvm {

class ArenaMemory {
 public:
  virtual ~ArenaMemory() = default;
  // Returns `size_bytes` (at least 1) of memory with the plan's alignment. Throws std::bad_alloc.
  virtual void* allocate(std::size_t size_bytes, std::size_t alignment_bytes) = 0;
  virtual void free(void* address, std::size_t size_bytes) noexcept = 0;
};

}  // namespace uvm
