// Records which streams work on live blocks, and to which blocks other code has raw pointers.
// Thread-safe; functions without a LockedHeap take the state lock themselves. In a forked child
// nothing is recorded.
#pragma once

#include <cstddef>
#include <vector>

#include "allocator/cache/thread_caches.hpp"
#include "allocator/state/heap_state.hpp"
#include "allocator/streams/fenced_blocks.hpp"

namespace uvm {

class StreamUses {
 public:
  StreamUses(Machine& machine, HeapState& state, ThreadCaches& caches, FencedBlocks& fenced)
      : machine_(machine), state_(state), caches_(caches), fenced_(fenced) {}

  // Records that the stream works on the block. Returns false if the address is in no live block.
  // Throws std::out_of_range if the device does not exist.
  bool record_use(const void* address, const DeviceStream& stream);
  // Same as record_use(), for all streams of the device that have pools and may have pending work.
  bool record_use_of_all(const void* address, int device);
  // Returns the streams that work on the live block, its own included; empty if there is no block.
  std::vector<DeviceStream> uses_of(const void* address) const;
  // Waits until all streams that work on the block have finished. Throws std::runtime_error if a
  // stream cannot be waited for.
  void wait_for_uses(const void* address);
  // Forbids sharing the block with users that may write. Returns false if `address` is in no live
  // block.
  bool mark_exported(const void* address);
  // Same as mark_exported(), for all live blocks that could be shared. Stops all other threads.
  void mark_live_exported();
  // Sets whether the program sees the block as page-locked memory on the host.
  void set_pinned(const void* address, bool pinned);

  // Makes room for `count` more uses of the block, so that add_use() allocates nothing.
  static void prepare_uses(const LockedHeap& heap, Block* block, std::size_t count);
  static void add_use(const LockedHeap& heap, Block* block, DeviceStream use);

 private:
  Machine& machine_;
  HeapState& state_;
  ThreadCaches& caches_;
  FencedBlocks& fenced_;
};

}  // namespace uvm
