// The streams that work on live blocks, and blocks whose pointers have left. Thread-safe; functions
// without a LockedHeap take the state lock themselves. In a forked child nothing is recorded.
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

  // Records that the stream works on the block. False: in no live block. std::out_of_range: no such
  // device.
  bool record_use(const void* address, const DeviceStream& stream);
  // As record_use(), for all streams of the device that have pools and whose work may be pending.
  bool record_use_of_all(const void* address, int device);
  // The streams that work on the block, its own included; none if the address is in no live block.
  std::vector<DeviceStream> uses_of(const void* address) const;
  // Waits until all streams that work on the block have finished. std::runtime_error: one cannot be
  // waited for.
  void wait_for_uses(const void* address);
  // Code that may write must not share the block any more. False: in no live block.
  bool mark_exported(const void* address);
  // As mark_exported(), for all live blocks that could be shared. Stops the world.
  void mark_live_exported();
  // Sets whether the block's use on the host is page-locked memory to the program.
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
