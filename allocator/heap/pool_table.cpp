#include "allocator/heap/pool_table.hpp"

#include <array>
#include <utility>

namespace uvm {

PoolIndex PoolTable::open(const StreamKey& key) {
  if (auto found = streams_.find(key); found != streams_.end()) {
    at(found->second).stream_is_over = false;
    return found->second;
  }
  const auto first = static_cast<PoolIndex>(pools_.size());
  std::array<std::unique_ptr<Pool>, kPoolsPerStream> made;
  for (PoolIndex place = 0; place < kPoolsPerStream; ++place) {
    made[place] = std::make_unique<Pool>(blocks_, large_hits_required_);
    made[place]->index = first + place;
    made[place]->key = key;
    made[place]->pool_class = static_cast<PoolClass>(place);
  }
  // All allocations come first: both pools are added, or none.
  const std::size_t wanted = pools_.size() + kPoolsPerStream;
  if (pools_.capacity() < wanted) pools_.reserve(2 * wanted);
  streams_.emplace(key, first);
  for (auto& pool : made) pools_.push_back(std::move(pool));
  return first;
}

void PoolTable::rename(PoolIndex first, const StreamKey& key) {
  auto entry = streams_.extract(at(first).key);
  entry.key() = key;
  streams_.insert(std::move(entry));
  for (PoolIndex pool = first; pool < first + kPoolsPerStream; ++pool) at(pool).key = key;
  at(first).stream_is_over = false;
}

std::optional<PoolIndex> PoolTable::forget(const StreamKey& key, std::uint64_t gone) {
  auto found = streams_.find(key);
  if (found == streams_.end()) return std::nullopt;
  const PoolIndex first = found->second;
  // The key of no stream, so that blocks still in use are not cached for a later stream with the
  // same handle.
  StreamKey forgotten = key;
  forgotten.private_pool = StreamKey::kForgotten;
  forgotten.thread = gone;
  rename(first, forgotten);
  return first;
}

std::size_t PoolTable::bytes() const {
  std::size_t bytes = 0;
  for (const auto& pool : pools_) {
    bytes += sizeof(Pool) + pool->own.table_bytes() + pool->displaced_here.table_bytes();
  }
  return bytes;
}

}  // namespace uvm
