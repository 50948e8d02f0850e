// The streams that work on live blocks, and pointers to blocks that have left. The functions are
// CachingManagedAllocator's, and are described there.
#pragma once

#include <cstddef>
#include <vector>

#include "allocator/cache/thread_caches.hpp"
#include "allocator/engine/fenced_blocks.hpp"
#include "allocator/engine/heap_state.hpp"

namespace uvm {

class StreamUses {
 public:
  StreamUses(Machine& machine, HeapState& state, ThreadCaches& caches, FencedBlocks& fenced)
      : machine_(machine), state_(state), caches_(caches), fenced_(fenced) {}

  bool record_use(const void* address, const DeviceStream& stream);
  bool record_use_of_all(const void* address, int device);
  std::vector<DeviceStream> uses_of(const void* address) const;
  void wait_for_uses(const void* address);
  bool mark_exported(const void* address);
  void mark_live_exported();
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
