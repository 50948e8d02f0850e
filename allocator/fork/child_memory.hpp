// Memory for a forked child, which can use neither the driver nor its parent's allocator: ordinary
// memory for the host and pinned facades. Guarded by the state lock.
#pragma once

#include <cstddef>
#include <unordered_set>

#include <uvmalloc/facade.hpp>

namespace uvm {

class ChildMemory {
 public:
  // Aligned to 512 bytes; nullptr for 0 bytes. Throws OutOfMemoryError, and std::runtime_error for
  // the device facade.
  void* allocate(Facade facade, std::size_t size_bytes);
  // False if the block was not allocated here.
  bool free(void* address);

 private:
  std::unordered_set<void*> blocks_;
};

}  // namespace uvm
