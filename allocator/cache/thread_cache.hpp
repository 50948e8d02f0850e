// Caches the blocks that one thread has freed and will likely request again (StreamCache), counts
// its allocations, and finds its blocks by address. A hit takes no lock that another thread takes
// in normal operation (AsymmetricLock), calls nothing and touches only the cache line of the
// block's record. Only blocks without side state are cached (invariant 11). Flushed blocks go to
// the pools.
//
// A cache belongs to its thread; other threads may flush the cache and read its counters while they
// hold its lock. The cache shares no pair of cache lines with data of other threads.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "allocator/base/asymmetric_lock.hpp"
#include "allocator/base/cache_lines.hpp"
#include "allocator/cache/recent_blocks.hpp"
#include "allocator/cache/stream_table.hpp"
#include "allocator/counters/figure_store.hpp"

namespace uvm {

class alignas(kCacheLinePair) ThreadCache {
 public:
  // `most_bytes` limits the cached bytes of one stream. `requests_per_look` is 0 or a power of two.
  // Every `requests_per_look`th allocation of a stream returns kDoneAtLimit if it is a hit, so that
  // the caller reads the clock; with 0, none does.
  ThreadCache(FigureStore::ThreadCounts thread_counts, std::size_t most_bytes,
              std::uint64_t requests_per_look)
      : most_bytes_(most_bytes),
        look_mask_(requests_per_look - 1),
        thread_counts_(std::move(thread_counts)) {}
  ThreadCache(const ThreadCache&) = delete;
  ThreadCache& operator=(const ThreadCache&) = delete;

  AsymmetricLock lock;

  // What allocate() has done.
  enum class Outcome : std::uint8_t {
    kMiss,  // no block was taken
    kDone,
    kDoneAtLimit,  // done; a peak may have been passed, or the clock is due
  };

  // ---- called by the owner, with the lock

  // Value of `*missed` after a miss if the caller must take the slow path.
  static constexpr StreamIndex kUnknownStream = StreamCache::kUnknownStream;

  // Returns the block that this thread last allocated at `address`, or nullptr if it is forgotten.
  // May be called without the lock.
  Block* known_at(const void* address) const { return recent_blocks_.at(address); }

  // Returns a cached block for `size_bytes`, or nullptr on a miss. A miss sets `*missed` to the
  // stream's index, so that the caller need not look it up. `*missed` is kUnknownStream if the
  // caller must take the slow path: if the stream is not among the 16 recently used streams, or if
  // the stream's cached large blocks have to be flushed first (StreamCache::flush_large()).
  Block* allocate(Facade facade, int device, StreamHandle stream, std::size_t size_bytes,
                  Outcome* outcome, StreamIndex* missed);
  // Caches a block that the program frees. The block must be live and have no side state. Returns
  // the block's stream, or nullptr if the cache refuses the block, for example for lack of room.
  const StreamKey* put(Block* block);
  // Counts the free of a block that put() has refused; the caller returns the block to its pool.
  // Returns the block's stream, or nullptr if the stream is not open.
  const StreamKey* pass_on(const Block& block);

  // Starts to cache the blocks of a stream's pools. `counter` is the index of the counters for its
  // memory kind and device.
  void open(const StreamKey& key, StreamIndex stream, std::size_t counter) {
    streams_.open(key, stream, thread_counts_[counter]);
  }

  ThreadCounters& counts(std::size_t counter) { return thread_counts_[counter]; }

  // Count a block that bypasses the cache. The stream must be open.
  // count_allocated() also remembers the block for known_at(), and returns false if a peak may have
  // been passed.
  [[gnu::always_inline]] bool count_allocated(StreamIndex stream, Block& block, bool from_cache) {
    return allocated(&streams_.at(stream), block, block.requested_bytes(), from_cache);
  }
  void count_freed(StreamIndex stream, const Block& block) { freed(&streams_.at(stream), block); }

  // ---- called by any thread that holds the lock

  // Returns nullptr if the stream is not open.
  StreamCache* stream(StreamIndex stream) const { return streams_.find(stream); }
  template <class Visit>
  void each_stream(Visit visit) const {
    streams_.each(visit);
  }
  // Moves the cached blocks of these pools to `*out`, and stops caching blocks of these pools.
  void close(StreamIndex stream, BlockChain* out) noexcept {
    StreamCache* of = streams_.find(stream);
    if (of == nullptr) return;
    of->flush_all(out);
    of->stop();
    streams_.forget(of);
  }
  // Drops the stream's bins and counts. No block of the stream may be cached.
  void drop(StreamIndex stream) noexcept {
    assert(streams_.find(stream) == nullptr || streams_.find(stream)->cached_bytes() == 0);
    streams_.drop(stream);
  }
  // Assigns the pools to another stream, whose requests get the cached blocks after open().
  void rename(StreamIndex stream, const StreamKey& key) { streams_.rename(stream, key); }

  // Returns whether the thread has allocated since the previous call.
  bool take_has_allocated() {
    std::int64_t blocks = 0;
    for (const ThreadCounters& counts : thread_counts_.all())
      blocks += counts.total(ThreadCounters::kAll).blocks;
    return std::exchange(allocated_before_, blocks) != blocks;
  }

  // Sets how much more the thread may allocate before the peak of all live bytes may be passed.
  void allow(std::int64_t room_bytes) { most_live_bytes_ = live_bytes_ + room_bytes; }

  std::size_t cached_bytes() const {
    std::size_t bytes = 0;
    streams_.each([&](const StreamCache& of) { bytes += of.cached_bytes(); });
    return bytes;
  }
  std::size_t bytes() const {
    std::size_t bytes = sizeof(*this);
    streams_.each([&](const StreamCache& of) { bytes += sizeof(of); });
    return bytes;
  }

 private:
  [[gnu::always_inline]] bool allocated(StreamCache* of, Block& block, std::size_t requested_bytes,
                                        bool from_cache) {
    recent_blocks_.remember(&block);
    const std::size_t size_bytes = block.size_bytes();
    live_bytes_ += static_cast<std::int64_t>(size_bytes);
    return of->count_allocated(size_bytes, requested_bytes, from_cache) &&
           live_bytes_ <= most_live_bytes_ && (of->counts().blocks & look_mask_) != 0;
  }
  [[gnu::always_inline]] void freed(StreamCache* of, const Block& block) {
    const std::size_t size_bytes = block.size_bytes();
    live_bytes_ -= static_cast<std::int64_t>(size_bytes);
    of->count_freed(size_bytes, block.requested_bytes());
  }

  const std::size_t most_bytes_;
  const std::uint64_t look_mask_;
  StreamTable streams_;
  RecentBlocks recent_blocks_;
  FigureStore::ThreadCounts thread_counts_;  // by facade and device
  std::int64_t live_bytes_ = 0;              // of all counters
  std::int64_t most_live_bytes_ = 0;
  std::int64_t allocated_before_ = 0;  // blocks allocated until the last take_has_allocated()
};

// Holds the lock of a thread's own cache until the end of its scope.
class CacheOwnerGuard {
 public:
  explicit CacheOwnerGuard(ThreadCache& cache) : cache_(cache) { cache_.lock.lock_owner(); }
  ~CacheOwnerGuard() { cache_.lock.unlock_owner(); }
  CacheOwnerGuard(const CacheOwnerGuard&) = delete;
  CacheOwnerGuard& operator=(const CacheOwnerGuard&) = delete;

 private:
  ThreadCache& cache_;
};

[[gnu::always_inline]] inline Block* ThreadCache::allocate(Facade facade, int device,
                                                           StreamHandle stream,
                                                           std::size_t size_bytes, Outcome* outcome,
                                                           StreamIndex* missed) {
  StreamCache* of = streams_.recent(facade, device, stream);
  if (of == nullptr) [[unlikely]] {
    *missed = kUnknownStream;
    return nullptr;
  }
  Block* block = of->take(size_bytes);
  if (block == nullptr) {
    *missed = of->on_miss();
    return nullptr;
  }
  block->use.resize(size_bytes);
  block->real.references = 1;
  block->set(BlockState::kLive);
  *outcome = allocated(of, *block, size_bytes, true) ? Outcome::kDone : Outcome::kDoneAtLimit;
  return block;
}

[[gnu::always_inline]] inline const StreamKey* ThreadCache::put(Block* block) {
  StreamCache* of = streams_.find(stream_of(block->pool));
  if (of == nullptr || !of->put(block, most_bytes_, &live_bytes_)) return nullptr;
  return &of->key();
}

[[gnu::always_inline]] inline const StreamKey* ThreadCache::pass_on(const Block& block) {
  StreamCache* of = streams_.find(stream_of(block.pool));
  if (of == nullptr) return nullptr;
  freed(of, block);
  return &of->key();
}

}  // namespace uvm
