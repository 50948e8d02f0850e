// What a forked child gets, which can use neither the driver nor the memory of its parent's
// allocator: ordinary memory for the host and pinned facades.
//
// Guarded by the allocator's lock.
#pragma once

#include <cstddef>
#include <unordered_set>

#include <uvmalloc/storage/facade.hpp>

namespace uvm {

class ChildMemory {
 public:
  // Aligned to 512 bytes; 0 bytes: nullptr. OutOfMemoryError; std::runtime_error for the device
  // facade.
  void* allocate(Facade facade, std::size_t size_bytes);
  // False: it is none of these.
  bool free(void* address);

 private:
  std::unordered_set<void*> blocks_;
};

}  // namespace uvm
