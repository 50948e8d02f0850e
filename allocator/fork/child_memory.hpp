// Serves host and pinned requests of a forked child from ordinary memory, because the child can use
// neither the driver nor the memory of the parent's allocator. Guarded by the state lock.
#pragma once

#include <cstddef>
#include <unordered_set>

#include <uvmalloc/facade.hpp>

namespace uvm {

class ChildMemory {
 public:
  // Returns memory aligned to 512 bytes, or nullptr for 0 bytes. Throws OutOfMemoryError, or
  // std::runtime_error if device memory is requested.
  void* allocate(Facade facade, std::size_t size_bytes);
  // Returns false if the block was not allocated here.
  bool free(void* address);

 private:
  std::unordered_set<void*> blocks_;
};

}  // namespace uvm
