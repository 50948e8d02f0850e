// All pools, by index and by stream. A stream has two neighbouring pools, one of each class. Pools
// are never removed, so an index stays valid. Guarded by the state lock.
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
  // `blocks` has the records of all blocks. `large_hits_required`: the first value of
  // Pool::large_hits_required.
  PoolTable(const RunBlockStore& blocks, std::uint64_t large_hits_required)
      : blocks_(blocks), large_hits_required_(large_hits_required) {}

  Pool& at(PoolIndex index) { return *pools_[index]; }
  const Pool& at(PoolIndex index) const { return *pools_[index]; }
  const std::vector<std::unique_ptr<Pool>>& all() const { return pools_; }

  // The first of the stream's two pools. Makes both if the stream has none.
  PoolIndex open(const StreamKey& key);
  bool contains(const StreamKey& key) const { return streams_.contains(key); }
  // Gives the two pools to another stream, which has none. This and forget() allocate nothing.
  void rename(PoolIndex first, const StreamKey& key);
  // Separates a stream that no call can name any more from its pools: the next open() makes others.
  // The pools keep their blocks. `gone` becomes their key's DeviceStream::thread. Returns the first
  // pool; nullopt if the stream has none.
  std::optional<PoolIndex> forget(const StreamKey& key, std::uint64_t gone);

  std::size_t bytes() const;

 private:
  const RunBlockStore& blocks_;
  const std::uint64_t large_hits_required_;
  std::vector<std::unique_ptr<Pool>> pools_;
  std::map<StreamKey, PoolIndex> streams_;
};

}  // namespace uvm
