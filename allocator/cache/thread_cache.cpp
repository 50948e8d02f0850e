#include "allocator/cache/thread_cache.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

namespace uvm {

ThreadCache::Bin* ThreadCache::Stream::claim(std::uint32_t granules) {
  for (Bin& bin : runs[set_of(granules)].bins) {
    if (bin.count != 0) continue;
    bin.granules = granules;
    return &bin;
  }
  return nullptr;
}

void ThreadCache::open(const StreamKey& key, StreamIndex stream, std::size_t counter) {
  std::size_t index = position(stream);
  if (index >= streams_.size()) streams_.resize(index + 1);
  if (streams_[index] == nullptr) {
    streams_[index] = std::make_unique<Stream>();
    streams_[index]->stream = stream;
    streams_[index]->thread_counts = &thread_counts_[counter];
    rename(stream, key);
  } else if (streams_[index]->key != key) {
    rename(stream, key);
  }
  // recent_ is searched by handle, so it cannot contain per-thread default streams: all threads'
  // streams share one handle.
  if (key.private_pool != 0 || !key.device_stream().can_be_named()) return;
  recent_[slot_of(key.facade, key.device, key.stream)] = streams_[index].get();
}

void ThreadCache::set_may_cache_large(StreamIndex stream, bool keep) {
  Stream* of = find_stream(stream);
  if (of == nullptr) return;
  const std::size_t largest = keep ? SIZE_MAX : kLargeBytes - 1;
  if (of->largest_cached == 0 || of->largest_cached == largest) return;
  of->largest_cached = largest;
  of->on_miss = keep ? kUnknownStream : stream;
  of->blocks_at_miss = of->counts.blocks;
}

bool ThreadCache::flush_large(StreamIndex stream, BlockChain* out) noexcept {
  Stream* of = streams_[position(stream)].get();
  if (of->largest_cached != SIZE_MAX) return true;
  flush(stream, CachedKind::kLarge, out);
  if (out->empty()) return true;
  const std::uint64_t before = std::exchange(of->blocks_at_miss, of->counts.blocks);
  return of->counts.blocks - before >= policy::kRequestsPerLargeMiss;
}

void ThreadCache::close(StreamIndex stream, BlockChain* out) noexcept {
  if (!is_open(stream)) return;
  flush(stream, CachedKind::kSmall, out);
  flush(stream, CachedKind::kRuns, out);
  Stream* of = streams_[position(stream)].get();
  of->largest_cached = 0;
  std::replace(recent_.begin(), recent_.end(), of, static_cast<Stream*>(nullptr));
}

void ThreadCache::drop(StreamIndex stream) noexcept {
  if (!is_open(stream)) return;
  std::unique_ptr<Stream>& of = streams_[position(stream)];
  assert(of->cached_bytes() == 0);
  std::replace(recent_.begin(), recent_.end(), of.get(), static_cast<Stream*>(nullptr));
  of.reset();
}

void ThreadCache::rename(StreamIndex stream, const StreamKey& key) {
  Stream* of = find_stream(stream);
  if (of == nullptr) return;
  std::replace(recent_.begin(), recent_.end(), of, static_cast<Stream*>(nullptr));
  of->key = key;
  // Blocks of private pools are counted here but never cached.
  of->largest_cached = key.private_pool != 0 ? 0 : kLargeBytes - 1;
  of->on_miss = stream;
  of->blocks_at_miss = of->counts.blocks;
}

void ThreadCache::put_spare(Block* block) {
  Stream* of = streams_[position(stream_of(block->pool))].get();
  of->other_bytes += block->size_bytes();
  block->set(BlockState::kCached);
  push(&of->direct[block->size_bytes() / kGranule - 1], block);
}

std::size_t ThreadCache::empty(Bin* bin, std::uint32_t keep, BlockChain* out) noexcept {
  std::size_t bytes = 0;
  while (bin->count > keep) {
    Block* block = pop(bin);
    block->set(BlockState::kReleasing);
    bytes += block->size_bytes();
    out->push(block);
  }
  return bytes;
}

void ThreadCache::flush(StreamIndex stream, CachedKind kind, BlockChain* out) noexcept {
  Stream* of = find_stream(stream);
  if (of == nullptr) return;
  if (kind == CachedKind::kSmall) {
    for (std::size_t i = 0; i < kSmallBins; ++i) {
      of->other_bytes -= empty(&of->direct[i], 0, out);
    }
    return;
  }
  if (kind != CachedKind::kLarge) {
    for (std::size_t word = 0; word < of->filled_medium.size(); ++word) {
      for (std::uint64_t bits = std::exchange(of->filled_medium[word], 0); bits != 0;
           bits &= bits - 1) {
        const std::size_t index = word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
        of->medium_bytes -= empty(&of->direct[index], 0, out);
      }
    }
  }
  if (kind != CachedKind::kMedium) {
    for (std::uint64_t sets = std::exchange(of->filled_sets, 0); sets != 0; sets &= sets - 1) {
      for (Bin& bin : of->runs[static_cast<std::size_t>(std::countr_zero(sets))].bins) {
        of->other_bytes -= empty(&bin, 0, out);
      }
    }
  }
}

void ThreadCache::trim(StreamIndex stream, std::size_t most_medium_bytes,
                       BlockChain* out) noexcept {
  const Stream* of = find_stream(stream);
  if (of == nullptr) return;
  flush(stream, CachedKind::kLarge, out);
  if (of->medium_bytes > most_medium_bytes) flush(stream, CachedKind::kMedium, out);
}

void ThreadCache::flush_all(BlockChain* out) noexcept {
  for (const auto& of : streams_) {
    if (of == nullptr) continue;
    flush(of->stream, CachedKind::kSmall, out);
    flush(of->stream, CachedKind::kRuns, out);
  }
}

void ThreadCache::flush_some(const Block& like, BlockChain* out) noexcept {
  Stream* of = streams_[position(stream_of(like.pool))].get();
  Bin* bin = &of->direct[like.size_bytes() / kGranule - 1];
  of->other_bytes -= empty(bin, bin->count - std::min(bin->count, policy::kFlushedBlocks), out);
}

std::size_t ThreadCache::bytes() const {
  std::size_t bytes = sizeof(*this);
  for (const auto& of : streams_) {
    if (of != nullptr) bytes += sizeof(*of);
  }
  return bytes;
}

bool ThreadCache::take_has_allocated() {
  std::int64_t blocks = 0;
  for (const ThreadCounters& counts : thread_counts_.all())
    blocks += counts.total(ThreadCounters::kAll).blocks;
  return std::exchange(allocated_before_, blocks) != blocks;
}

std::size_t ThreadCache::cached_bytes() const {
  std::size_t bytes = 0;
  for (const auto& of : streams_) {
    if (of != nullptr) bytes += of->cached_bytes();
  }
  return bytes;
}

}  // namespace uvm
