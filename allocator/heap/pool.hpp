// Holds the free blocks of one memory kind, device, stream and class. Guarded by the state lock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <tuple>

#include "allocator/heap/block.hpp"
#include "allocator/heap/free_index.hpp"
#include "allocator/heap/free_tree.hpp"
#include "allocator/heap/page_block_store.hpp"
#include "allocator/heap/stream_key.hpp"

namespace uvm {

// How a pool cuts memory. The value is also the pool's offset from its stream's first pool.
enum class PoolClass : std::uint8_t { kPacked, kPageGranular };

constexpr PoolClass pool_class_of(Facade facade, std::size_t size_bytes) {
  return is_page_granular(facade, size_bytes) ? PoolClass::kPageGranular : PoolClass::kPacked;
}

constexpr PoolIndex pool_of(StreamIndex stream, PoolClass pool_class) {
  return static_cast<PoolIndex>(stream) * kPoolsPerStream + static_cast<PoolIndex>(pool_class);
}

struct Pool {
  // The order of displaced_away: by size, then the block that was displaced first, because its
  // fences finish first. displaced_away is a std::set, because the index node in a block's record
  // belongs to the pool in which the block is free.
  struct SmallestThenOldest {
    using is_transparent = void;
    static auto key(const PageBlock* block) {
      return std::tuple(block->size_bytes(), block->own_pages->displaced_at, block->address());
    }
    bool operator()(const PageBlock* left, const PageBlock* right) const {
      return key(left) < key(right);
    }
    bool operator()(const PageBlock* block, std::size_t size_bytes) const {
      return block->size_bytes() < size_bytes;
    }
  };

  Pool(const PageBlockStore& blocks, std::uint64_t hits_required)
      : own(blocks), large_hits_required(hits_required), displaced_here(blocks) {}

  PoolIndex index = 0;
  StreamKey key;
  PoolClass pool_class = PoolClass::kPacked;
  std::size_t run_bytes = 0;  // sum of all page blocks that this pool owns, displaced ones included
  FreeIndex own;              // the free blocks that this pool owns, without displaced ones
  // The next four members are used only in a stream's first pool. stream_is_over: the stream was
  // destroyed and its work has finished; a later request with its handle is from another stream.
  bool stream_is_over = false;
  // The number of requests that are using the pools, if these belong to a private pool.
  std::uint32_t requests = 0;
  // The stream was destroyed, or its thread has ended; the next new stream takes over the pools.
  // `last_work` is the fence of a destroyed stream; it is empty if the stream's thread has ended.
  bool is_orphaned = false;
  std::optional<Fence> last_work;
  // Counts the large requests that this pool has served since thread caches last had to return
  // their large blocks. Threads may cache large blocks once the count is `large_hits_required`,
  // which grows by the factor kLargeBackOff each time.
  std::uint64_t large_hits = 0;
  std::uint64_t large_hits_required;
  bool may_cache_large() const { return large_hits >= large_hits_required; }
  void stop_caching_large() {
    large_hits = 0;
    large_hits_required =
        std::min(large_hits_required * policy::kLargeBackOff, policy::kMostLargeHitsRequired);
  }
  bool is_empty() const { return run_bytes == 0 && displaced_here.empty(); }
  void drop_unused_tables() {
    if (run_bytes == 0) own.drop_empty_tables();
  }
  // Page-granular pools only. displaced_here: blocks of other owning pools that are free in this
  // pool. displaced_away: blocks of this owning pool that are free in other pools.
  FreeIndex displaced_here;
  std::set<PageBlock*, SmallestThenOldest> displaced_away;
};

}  // namespace uvm
