// Memory for a forked child, which can use neither the driver nor its parent's allocator: ordinary
// memory for the host and pinned facades. Guarded by the state lock.
#pragma once

#include <cstddef>
#include <unordered_set>

#include <uvmalloc/facade.hpp>

namespace uvm {

class ChildMemory {
 public:
  // Aligned to 512 bytes; 0 bytes: nullptr. OutOfMemoryError; std::runtime_error for the device
  // facade.
  void* allocate(Facade facade, std::size_t size_bytes);
  // False: the block was not allocated here.
  bool free(void* address);

 private:
  std::unordered_set<void*> blocks_;
};

}  // namespace uvm
