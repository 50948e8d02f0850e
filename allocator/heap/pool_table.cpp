#include "allocator/heap/pool_table.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace uvm {

StreamIndex PoolTable::open(const StreamKey& key) {
  if (auto found = streams_.find(key); found != streams_.end()) {
    at(found->second).stream_is_over = false;
    return found->second;
  }
  if (const auto spare = take_spare(key)) return *spare;
  return make(key);
}

// Only pools of device streams are given back. They serve only streams of the same device, because
// the counters of a stream belong to a device.
std::optional<StreamIndex> PoolTable::take_spare(const StreamKey& key) {
  if (key.facade != Facade::kDevice) return std::nullopt;
  const auto found = std::find_if(spare_.begin(), spare_.end(), [&](StreamIndex stream) {
    return at(stream).key.device == key.device;
  });
  if (found == spare_.end()) return std::nullopt;
  const StreamIndex stream = *found;
  spare_.erase(found);
  rename(stream, key);
  return stream;
}

StreamIndex PoolTable::make(const StreamKey& key) {
  const StreamIndex stream = stream_of(static_cast<PoolIndex>(pools_.size()));
  std::array<std::unique_ptr<Pool>, kPoolsPerStream> made;
  for (PoolIndex place = 0; place < kPoolsPerStream; ++place) {
    made[place] = std::make_unique<Pool>(blocks_, large_hits_required_);
    made[place]->index = pool_of(stream, static_cast<PoolClass>(place));
    made[place]->key = key;
    made[place]->pool_class = static_cast<PoolClass>(place);
  }
  // Memory is allocated first, so that both pools are added, or none.
  const std::size_t wanted = pools_.size() + kPoolsPerStream;
  if (pools_.capacity() < wanted) pools_.reserve(2 * wanted);
  spare_.reserve(pools_.capacity() / kPoolsPerStream);
  streams_.emplace(key, stream);
  for (auto& pool : made) pools_.push_back(std::move(pool));
  return stream;
}

void PoolTable::rename(StreamIndex stream, const StreamKey& key) {
  auto entry = streams_.extract(at(stream).key);
  entry.key() = key;
  streams_.insert(std::move(entry));
  for (const auto& pool : pools_of(stream)) pool->key = key;
  at(stream).stream_is_over = false;
}

std::optional<StreamIndex> PoolTable::forget(const StreamKey& key, std::uint64_t gone) {
  auto found = streams_.find(key);
  if (found == streams_.end()) return std::nullopt;
  const StreamIndex stream = found->second;
  // No stream has the new key, so blocks that are still in use are never cached for a later stream
  // with the same handle.
  StreamKey forgotten = key;
  forgotten.private_pool = StreamKey::kForgotten;
  forgotten.thread = gone;
  rename(stream, forgotten);
  return stream;
}

void PoolTable::give_back(StreamIndex stream, std::uint64_t gone) {
  forget(at(stream).key, gone);
  for (const auto& pool : pools_of(stream)) {
    pool->drop_unused_tables();
    pool->large_hits = 0;
    pool->large_hits_required = large_hits_required_;
  }
  at(stream).stream_is_over = true;
  spare_.push_back(stream);
}

std::size_t PoolTable::bytes() const {
  std::size_t bytes = spare_.capacity() * sizeof(StreamIndex);
  for (const auto& pool : pools_) {
    bytes += sizeof(Pool) + pool->own.table_bytes() + pool->displaced_here.table_bytes();
  }
  return bytes;
}

}  // namespace uvm
