// Decides which streams may still work on a freed block, which pool the block joins, and which
// fences must be over first (Note "Fences without an event per free"). Owns the blocks that wait. A
// displaced block does not wait in this object. It keeps its fences in its side state, because the
// stream of the pool that the block joins may use the block at once.
//
// Thread-safe. Functions that take no LockedHeap take the state lock themselves and may call the
// driver. One thread at a time queries fences.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "allocator/heap/block_chain.hpp"
#include "allocator/state/fence_queues.hpp"
#include "allocator/state/heap_state.hpp"
#include "runtime/ranked.hpp"

namespace uvm {

class FencedBlocks {
 public:
  // Gives blocks to `returns` when their fences are over, without the state lock.
  FencedBlocks(HeapState& state, StreamWork& work, ReturnsBlocks& returns);
  FencedBlocks(const FencedBlocks&) = delete;
  FencedBlocks& operator=(const FencedBlocks&) = delete;
  // Called at the end, when the devices are idle: releases the events. The pools drop the blocks.
  void close(const LockedHeap& heap);

  // Returns the streams that may have work on the block.
  std::vector<DeviceStream> users_of(const LockedHeap& heap, const Block& block) const;
  // Returns the pool that a freed block joins: a pool of the place where the block's pages are. The
  // block's storage records no longer exist, but Block::use still holds the place of the last
  // record.
  PoolIndex pool_for(const LockedHeap& heap, const Block& block);
  // Returns whether the pool may serve the block only after a fence: the block's pages belong to
  // another pool, or a stream other than the pool's may still use the block.
  bool needs_fence(const LockedHeap& heap, const Block& block, const Pool& pool) const;

  // Takes a freed block, which has no storage records any more, and sets the pool that it joins.
  // Returns true if the block waits: for its streams or, if there is no memory to record fences,
  // for memory. If false, the caller may give the block back at once.
  bool add(Block* block) noexcept;

  // Queries the next few streams, and gives back blocks without pending fences. No-op in a capture.
  void drain_some() {
    if (may_drain()) drain(policy::kStreamsPerDrain, false);
  }
  // Same as drain_some(), for all streams. Returns false if drain_some() already covers all
  // streams.
  bool drain_finished() {
    if (!may_drain() || !has_more_streams()) return false;
    drain(kAllStreams, false);
    return true;
  }
  // Returns whether blocks may be waiting.
  bool any() const UVM_NOT_ANALYSED {
    return !waiting_.empty() || has_deferred_.load(std::memory_order_relaxed);
  }
  // Waits until all waiting blocks are free, and gives them back.
  void drain_all() { drain(kAllStreams, true); }
  // Waits for the oldest fence of each stream, and gives back the blocks that are free then.
  // Returns false if no fence is pending, or a device cannot be waited for.
  bool wait_for_oldest();
  // Returns the bytes of the waiting blocks that `owning_pool` owns.
  std::size_t waiting_bytes(const LockedHeap& heap, PoolIndex owning_pool) const;
  // Records fences for blocks that were freed during a capture, or when memory was short.
  void record_deferred() noexcept;

  // Returns the fences of a free block that the caller took. On std::bad_alloc puts the block back.
  std::vector<Fence> fences_of(const LockedHeap& heap, PageBlock* block) const;
  // Drops the fences of a block, because they are over or the stream that takes the block need not
  // wait.
  void drop_fences(const LockedHeap& heap, PageBlock* block);

 private:
  static constexpr std::size_t kAllStreams = SIZE_MAX;
  bool may_drain() const { return any() && !state_.is_capturing(); }
  bool has_more_streams() const;
  void drain(std::size_t most_streams, bool wait);
  BlockChain take_finished(const std::vector<Fence>& oldest, bool wait, bool* more);
  bool try_to_add(Block* block);
  void defer(const LockedHeap& heap, Block* block);
  // Returns the streams that must finish their work before the block may join `pool`.
  std::vector<DeviceStream> streams_to_wait_for(const LockedHeap& heap, const Block& block,
                                                const Pool& pool) const;

  HeapState& state_;
  StreamWork& work_;
  ReturnsBlocks& returns_;
  // One thread at a time takes blocks when their fences are over. So a second thread that is short
  // of memory finds those blocks already given back.
  Ranked<std::mutex, LockRank::kFences> mutex_;
  DeviceStream last_drained_;  // guarded by mutex_
  FenceQueues waiting_ UVM_GUARDED_BY(state_);
  BlockChain deferred_ UVM_GUARDED_BY(state_);          // freed in a capture, or memory was short
  std::uint64_t displaced_ UVM_GUARDED_BY(state_) = 0;  // number of blocks displaced so far
  std::atomic<bool> has_deferred_ = false;
};

}  // namespace uvm
