// Owns all pools, and finds them by index and by stream. Pools are never removed, so an index stays
// valid. Pools that were given back serve the next new stream of their device. Guarded by the state
// lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "allocator/heap/pool.hpp"

namespace uvm {

class PoolTable {
 public:
  // `blocks` owns the records of all blocks. `large_hits_required` is the first value of
  // Pool::large_hits_required.
  PoolTable(const PageBlockStore& blocks, std::uint64_t large_hits_required)
      : blocks_(blocks), large_hits_required_(large_hits_required) {}

  Pool& at(PoolIndex index) { return *pools_[index]; }
  const Pool& at(PoolIndex index) const { return *pools_[index]; }
  // Returns the pool that stores the state of the whole stream: stream_is_over, requests,
  // is_orphaned, last_work.
  Pool& at(StreamIndex stream) { return at(pool_of(stream, PoolClass{})); }
  const Pool& at(StreamIndex stream) const { return at(pool_of(stream, PoolClass{})); }
  const std::vector<std::unique_ptr<Pool>>& all() const { return pools_; }

  // Returns the stream's index. A new stream gets spare or new pools.
  StreamIndex open(const StreamKey& key);
  // Returns the index after that of the last stream.
  StreamIndex streams_end() const { return stream_of(static_cast<PoolIndex>(pools_.size())); }
  std::span<const std::unique_ptr<Pool>> pools_of(StreamIndex stream) const {
    return std::span(pools_).subspan(pool_of(stream, PoolClass{}), kPoolsPerStream);
  }
  bool contains(const StreamKey& key) const { return streams_.contains(key); }
  // Assigns the two pools to another stream, which must have no pools. Allocates nothing.
  void rename(StreamIndex stream, const StreamKey& key);
  // Separates a stream that no call can name any more from its pools, so that open() with the same
  // key makes other pools. The pools keep their blocks. `gone` becomes DeviceStream::thread in the
  // key of the pools. Returns the stream's index, or nullopt if the stream has no pools. Allocates
  // nothing.
  std::optional<StreamIndex> forget(const StreamKey& key, std::uint64_t gone);

  // Separates the pools from their stream, like forget(), and keeps the pools for the next new
  // stream of the device. The pools must hold no pages, and no thread cache may have counters for
  // these pools. Allocates nothing.
  void give_back(StreamIndex stream, std::uint64_t gone);

  std::size_t bytes() const;

 private:
  StreamIndex make(const StreamKey& key);
  std::optional<StreamIndex> take_spare(const StreamKey& key);

  const PageBlockStore& blocks_;
  const std::uint64_t large_hits_required_;
  std::vector<std::unique_ptr<Pool>> pools_;
  std::map<StreamKey, StreamIndex> streams_;
  std::vector<StreamIndex> spare_;  // given back; has room for all streams
};

}  // namespace uvm
