// The streams' side of a free: which streams may still work on a block that is given back, whose
// free blocks it joins, and what must be over first. It keeps the blocks that wait. Free blocks
// that only their stream may use at once, since they are guests there (BlockPools), carry their
// fences with them.
//
// Thread-safe. What is said to be with the lock is called with the allocator's lock; all other
// calls take it themselves and may call the driver. One thread at a time looks which fences are
// over.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include <uvmalloc/allocator/base/biased_mutex.hpp>
#include <uvmalloc/allocator/heap/block_chain.hpp>
#include <uvmalloc/allocator/heap/block_pools.hpp>
#include <uvmalloc/allocator/statistics/statistics_book.hpp>
#include <uvmalloc/allocator/streams/fence_queues.hpp>
#include <uvmalloc/allocator/streams/private_pools.hpp>
#include <uvmalloc/allocator/streams/stream_work.hpp>
#include <uvmalloc/runtime/ranked.hpp>

namespace uvm {

class FencedBlocks {
 public:
  // Gets the blocks that nobody waits for any more. Called without the allocator's lock.
  using GiveBack = std::function<void(BlockChain)>;

  FencedBlocks(StateLock& lock, BlockPools& pools, const PrivatePools& private_pools,
               StreamWork& work, StatisticsBook& book, GiveBack give_back);
  FencedBlocks(const FencedBlocks&) = delete;
  FencedBlocks& operator=(const FencedBlocks&) = delete;
  // At the end, when the devices are idle: gives the events back. The blocks go with the pools.
  void close();

  // With the lock: every stream that may have work on the block.
  std::vector<DeviceStream> users_of(const Block& block) const;
  // With the lock: the pool of the place where a block's pages are, that it joins when it is free.
  // Its records are gone; the last one's place stays in `use`.
  PoolIndex pool_for(const Block& block);
  // With the lock: whether anybody but the pool's own stream may still use the block, or its home
  // may want it back.
  bool needs_fence(const Block& block, const Pool& pool) const;

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

  // With the lock, of a free block that the caller has taken: whether its fences are over, and gone
  // then. The lock is let go meanwhile. std::bad_alloc: the block is back in its pool.
  bool shed_fences(RunBlock* block, std::unique_lock<StateLock>* lock);
  // With the lock: they guard it against others than the caller, or its device was waited for.
  void drop_fences(RunBlock* block);
  // Free blocks that carry fences are free like others where these are over.
  void shed_finished_fences();

 private:
  static constexpr std::size_t kAllStreams = SIZE_MAX;
  bool may_drain() const { return any() && !private_pools_.is_capturing(); }
  bool has_more_streams() const;
  void drain(std::size_t most_streams, bool wait);
  BlockChain take_finished(const std::vector<Fence>& oldest, bool wait, bool* more);
  bool try_to_add(Block* block);
  void defer(Block* block);
  // Whose work must be over before the blocks of `pool` may include this one.
  std::vector<DeviceStream> streams_to_wait_for(const Block& block, const Pool& pool) const;

  StateLock& lock_;
  BlockPools& pools_;
  const PrivatePools& private_pools_;
  StreamWork& work_;
  StatisticsBook& book_;
  const GiveBack give_back_;
  // One thread at a time takes blocks whose fences are over: another that needs memory must find
  // what this one looks at. Taken before the arenas' lock and the allocator's.
  Ranked<std::mutex, LockRank::kFences> mutex_;
  // Guarded by the allocator's lock.
  FenceQueues waiting_;
  DeviceStream looked_at_;  // the last in turn
  BlockChain deferred_;     // given back during a capture, or without memory
  std::atomic<bool> has_deferred_ = false;
};

}  // namespace uvm
