// Holds blocks that a program freed by cudaFree while the device may still use them. The real
// cudaFree waits for the device; uvmalloc defers the block instead. A deferred block is freed when
// the program has waited for the device, or when uvmalloc waits because too many are deferred.
// While a stream is being captured, blocks stay deferred, because a wait would invalidate the
// capture. Thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <mutex>
#include <unordered_set>
#include <vector>

namespace uvm {
class CachingManagedAllocator;
}

namespace uvm::preload {

class DeferredFrees {
 public:
  explicit DeferredFrees(CachingManagedAllocator& allocator);

  // Defers a live block of `size_bytes` bytes that `device` may still use.
  void add(int device, void* address, std::size_t size_bytes);

  // Calls `wait`, which waits for the device and returns whether it succeeded. If so, frees the
  // blocks that were deferred before this call. Returns whether it freed any blocks.
  using Wait = std::function<bool()>;
  bool free_after(int device, const Wait& wait);

  // Removes these blocks without freeing them, because they were destroyed with their context.
  void forget(const std::unordered_set<const void*>& ended);

  // Waits for each device with deferred blocks, and frees these blocks. Returns whether it freed
  // any.
  bool wait_and_free();

 private:
  struct OfDevice {
    std::list<std::vector<void*>> batches;  // a list, so that splicing a batch back cannot fail
    std::size_t blocks = 0;
    std::size_t bytes = 0;
  };

  bool wait_and_free(int device);

  CachingManagedAllocator& allocator_;
  std::mutex mutex_;
  std::vector<OfDevice> devices_;
};

}  // namespace uvm::preload
