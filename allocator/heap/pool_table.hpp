// Owns all pools, and finds them by index and by stream. Pools are never removed, so an index stays
// valid. Pools that were given back serve the next new stream of their device. Guarded by the state
// lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "allocator/heap/pool.hpp"

namespace uvm {

class PoolTable {
 public:
  // `blocks` has the records of all blocks. `large_hits_required` is the first value of
  // Pool::large_hits_required.
  PoolTable(const PageBlockStore& blocks, std::uint64_t large_hits_required)
      : blocks_(blocks), large_hits_required_(large_hits_required) {}

  Pool& at(PoolIndex index) { return *pools_[index]; }
  const Pool& at(PoolIndex index) const { return *pools_[index]; }
  const std::vector<std::unique_ptr<Pool>>& all() const { return pools_; }

  // Returns the first pool of the stream, which gets spare or new pools if it has none.
  PoolIndex open(const StreamKey& key);
  bool contains(const StreamKey& key) const { return streams_.contains(key); }
  // Assigns the two pools to another stream, which must have no pools. Allocates nothing.
  void rename(PoolIndex first, const StreamKey& key);
  // Separates a stream that no call can name any more from its pools: open() with the same key then
  // makes other pools. The pools keep their blocks. `gone` becomes DeviceStream::thread of their
  // key. Returns the first pool, or nullopt if the stream has no pools. Allocates nothing.
  std::optional<PoolIndex> forget(const StreamKey& key, std::uint64_t gone);

  // Separates the pools from their stream, like forget(), and keeps the pools for the next new
  // stream of the device. The pools must hold no pages, and no thread cache may have counters for
  // them. Allocates nothing.
  void give_back(PoolIndex first, std::uint64_t gone);

  std::size_t bytes() const;

 private:
  PoolIndex make(const StreamKey& key);
  std::optional<PoolIndex> take_spare(const StreamKey& key);

  const PageBlockStore& blocks_;
  const std::uint64_t large_hits_required_;
  std::vector<std::unique_ptr<Pool>> pools_;
  std::map<StreamKey, PoolIndex> streams_;
  std::vector<PoolIndex> spare_;  // given back; has room for the first pools of all streams
};

}  // namespace uvm
