// The streams' side of a free: which streams may still work on a block that is given back, whose
// free blocks it joins, and what must be over first. It keeps the blocks that wait. Free blocks
// that only their stream may use at once, since they are guests there (BlockPools), carry their
// fences with them.
//
// Thread-safe. Functions that take no LockedHeap take the state lock themselves and may call the
// driver. One thread at a time looks which fences are over.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include <uvmalloc/allocator/engine/heap_state.hpp>
#include <uvmalloc/allocator/heap/block_chain.hpp>
#include <uvmalloc/allocator/streams/fence_queues.hpp>
#include <uvmalloc/runtime/ranked.hpp>

namespace uvm {

class FencedBlocks {
 public:
  // Gets the blocks that nobody waits for any more. Called without the allocator's lock.
  using GiveBack = std::function<void(BlockChain)>;

  FencedBlocks(HeapState& state, StreamWork& work, GiveBack give_back);
  FencedBlocks(const FencedBlocks&) = delete;
  FencedBlocks& operator=(const FencedBlocks&) = delete;
  // At the end, when the devices are idle: gives the events back. The blocks go with the pools.
  void close(const LockedHeap& heap);

  // Every stream that may have work on the block.
  std::vector<DeviceStream> users_of(const LockedHeap& heap, const Block& block) const;
  // The pool of the place where a block's pages are, that it joins when it is free.
  // Its records are gone; the last one's place stays in `use`.
  PoolIndex pool_for(const LockedHeap& heap, const Block& block);
  // Whether anybody but the pool's own stream may still use the block, or its home
  // may want it back.
  bool needs_fence(const LockedHeap& heap, const Block& block, const Pool& pool) const;

  // Takes a block with nobody, whose records are gone, and says to which pool it belongs now. True:
  // it waits here, until its streams are through or, where there is no memory to record that, until
  // there is. False: it may be given back at once.
  bool add(Block* block) noexcept;

  // Gives back blocks whose streams are through, those of some streams at a time, in turns; during
  // a capture none.
  void drain_some() {
    if (may_drain()) drain(policy::kStreamsPerDrain, false);
  }
  // Those of all streams, where there are more. False: there are not.
  bool drain_finished() {
    if (!may_drain() || !has_more_streams()) return false;
    drain(kAllStreams, false);
    return true;
  }
  // Whether some blocks may be waiting here.
  bool any() const { return !waiting_.empty() || has_deferred_.load(std::memory_order_relaxed); }
  // Waits for all that are here, and gives them back.
  void drain_all() { drain(kAllStreams, true); }
  // Records the fences of blocks that were given back during a capture, where it is over, or
  // without memory.
  void record_deferred() noexcept;

  // The fences of a free block that the caller has taken. std::bad_alloc: it is in its pool again.
  std::vector<Fence> fences_of(const LockedHeap& heap, RunBlock* block) const;
  // They guard it against others than the caller, or its device was waited for.
  void drop_fences(const LockedHeap& heap, RunBlock* block);
  // Free blocks that carry fences are free like others where these are over.
  void shed_finished_fences();

 private:
  static constexpr std::size_t kAllStreams = SIZE_MAX;
  bool may_drain() const { return any() && !state_.is_capturing(); }
  bool has_more_streams() const;
  void drain(std::size_t most_streams, bool wait);
  BlockChain take_finished(const std::vector<Fence>& oldest, bool wait, bool* more);
  bool try_to_add(Block* block);
  void defer(const LockedHeap& heap, Block* block);
  // Whose work must be over before the blocks of `pool` may include this one.
  std::vector<DeviceStream> streams_to_wait_for(const LockedHeap& heap, const Block& block,
                                                const Pool& pool) const;

  HeapState& state_;
  StreamWork& work_;
  const GiveBack give_back_;
  // One thread at a time takes blocks whose fences are over: another that needs memory must find
  // what this one looks at. Taken before the arenas' lock and the allocator's.
  Ranked<std::mutex, LockRank::kFences> mutex_;
  // Guarded by the state lock.
  FenceQueues waiting_;
  DeviceStream looked_at_;  // the last in turn
  BlockChain deferred_;     // given back during a capture, or without memory
  std::atomic<bool> has_deferred_ = false;
};

}  // namespace uvm
