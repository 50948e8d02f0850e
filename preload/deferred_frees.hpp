// Blocks that a program has freed with a call that waits for the device (cudaFree), while the
// device may still work on them. The call does not wait here. Instead the blocks are kept apart
// until the device is known to be done with all work from before their free: because the program
// itself has waited for it, or because there are too many of them and we wait once for all. While a
// stream captures they stay, because a wait would invalidate its graph.
// Thread-safe.
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
  static constexpr std::size_t kMostBlocks = 64;  // of a device, before it is waited for
  static constexpr std::size_t kMostBytes = std::size_t{256} << 20;  // likewise

  explicit DeferredFrees(CachingManagedAllocator& allocator);

  // Takes a live block of `size_bytes` bytes, which `device` may work on.
  void add(int device, void* address, std::size_t size_bytes);

  // Calls `wait`, which waits for the device and returns whether it could. Frees the blocks from
  // before the call. Returns whether any was freed.
  using Wait = std::function<bool()>;
  bool free_after(int device, const Wait& wait);

  // These blocks have ended by themselves.
  void forget(const std::unordered_set<const void*>& ended);

  // Waits for all devices that have blocks here, and frees these. Returns whether any was freed.
  bool wait_and_free();

 private:
  struct OfDevice {
    std::list<std::vector<void*>> batches;  // a batch that comes back needs no memory
    std::size_t blocks = 0;
    std::size_t bytes = 0;
  };

  bool wait_and_free(int device);

  CachingManagedAllocator& allocator_;
  std::mutex mutex_;
  std::vector<OfDevice> devices_;
};

}  // namespace uvm::preload
