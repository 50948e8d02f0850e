// Owns the caches of an allocator's threads. A thread's cache is made when the thread first needs
// it, and retired when the thread ends. A thread finds its cache by thread-local storage, without a
// lock. StopTheWorld gives access to all caches: while the object exists, no other thread is inside
// its cache, and each other thread waits at its next allocation or free.
//
// Order of locks: the mutex of this list, then the caches' own locks, then the state lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "allocator/cache/thread_cache.hpp"
#include "allocator/counters/figure_store.hpp"
#include "allocator/counters/peak_tracker.hpp"
#include "allocator/heap/returns_blocks.hpp"
#include "runtime/ranked.hpp"

namespace uvm {

class UVM_CAPABILITY("stopped world") ThreadCaches {
 public:
  // Threads keep their counters in `figures`, which must outlive the caches. An ending thread gives
  // its cached blocks to `returns`.
  ThreadCaches(FigureStore& figures, std::size_t most_bytes, std::uint64_t requests_per_look,
               ReturnsBlocks& returns);
  ~ThreadCaches();
  ThreadCaches(const ThreadCaches&) = delete;
  ThreadCaches& operator=(const ThreadCaches&) = delete;

  // Waits for ending threads that are returning caches; threads that end later return nothing. No
  // thread may use the allocator any more, but threads may still end. May be called again.
  void close() noexcept;

  // Returns this thread's cache, or nullptr if the thread's local storage is destroyed, in a forked
  // child, or if there is no memory for a cache.
  ThreadCache* local() noexcept { return slot_.serial == serial_ ? slot_.cache : local_slow(); }

  class UVM_SCOPED_CAPABILITY StopTheWorld {
   public:
    explicit StopTheWorld(ThreadCaches& caches) UVM_ACQUIRE(caches);
    ~StopTheWorld() UVM_RELEASE();
    StopTheWorld(const StopTheWorld&) = delete;
    StopTheWorld& operator=(const StopTheWorld&) = delete;

   private:
    ThreadCaches& caches_;
    RankedGuard<Ranked<std::mutex, LockRank::kCaches>> lock_;
  };

  // Move the cached blocks of the stream, or of all streams, to `*out`.
  // close() also stops caching blocks of the stream.
  void flush(StreamIndex stream, CachedKind kind, BlockChain* out) noexcept UVM_REQUIRES(this);
  void flush_all(BlockChain* out) noexcept UVM_REQUIRES(this);
  void close(StreamIndex stream, BlockChain* out) noexcept UVM_REQUIRES(this);
  // Assigns pools to another stream, after close() or the end of the old stream's thread.
  void rename(StreamIndex stream, const StreamKey& key) UVM_REQUIRES(this);
  // Removes a stream from the caches, and keeps its counts. No block of the stream may be in use.
  void drop(StreamIndex stream) noexcept UVM_REQUIRES(this);
  // Let threads cache large blocks of the stream, or stop this. stop_caching_large() also moves the
  // cached large blocks to `*out`. Both functions stop the world themselves.
  void set_may_cache_large(StreamIndex stream);
  void stop_caching_large(StreamIndex stream, BlockChain* out);
  PeakTracker& peaks() UVM_REQUIRES(this) { return peaks_; }
  // Sums the counts of all threads at one index, or at every index; updates the peaks; and divides
  // the headroom below the peaks among the threads. Allocates nothing.
  void aggregate(std::size_t counter) UVM_REQUIRES(this);
  void aggregate() UVM_REQUIRES(this);
  ThreadCounters sum(std::size_t counter) const UVM_REQUIRES(this);
  std::int64_t peak_live_bytes() const UVM_REQUIRES(this) { return peak_live_bytes_; }
  // Returns the counts of the stream. The peak in these counts is the sum of the threads' peaks.
  StreamCounters sum_of_stream(StreamIndex stream) const UVM_REQUIRES(this);
  std::size_t cached_bytes() const UVM_REQUIRES(this);
  // Bytes of the caches' own tables.
  std::size_t bytes() const UVM_REQUIRES(this);

  // Called before a block of the stream is handed out, so that count_elsewhere() and the end of a
  // thread allocate nothing. Locks the list itself.
  void make_room(StreamIndex stream) {
    if (!has_room(stream)) make_more_room(stream);
  }
  bool has_room(StreamIndex stream) const {
    return position(stream) < streams_with_room_.load(std::memory_order_acquire);
  }
  // Counts for a thread without a cache, or with a cache that does not know the stream: calls
  // count(ThreadCounters&, StreamCounters&). Stops the world itself.
  template <class Count>
  void count_elsewhere(Count count, std::size_t counter, StreamIndex stream) noexcept {
    const StopTheWorld stopped(*this);
    count(ended_[counter], ended_streams_[position(stream)]);
    aggregate();
  }

  // Called in a forked child: this thread loses its cache, and no thread gets a cache any more.
  void abandon() noexcept;

  // Called around a fork: lock and unlock the list of all allocators, which ending threads search.
  static void lock_list_for_fork() UVM_NOT_ANALYSED;
  static void unlock_list_after_fork() UVM_NOT_ANALYSED;

 private:
  friend struct ThreadExitHook;
  struct Slot {
    std::uint64_t serial = 0;  // serial of the allocator that owns the cache
    ThreadCache* cache = nullptr;
  };

  ThreadCache* local_slow() noexcept;
  ThreadCache* add_cache();
  void retire(ThreadCache* cache) noexcept;
  void take_out(ThreadCache* cache, BlockChain* blocks, std::vector<StreamIndex>* streams) noexcept;
  // Calls visit(StreamCache&) for each cache in which the stream is open.
  template <class Visit>
  void each_of(StreamIndex stream, Visit visit) const {
    for (const auto& cache : caches_) {
      if (StreamCache* of = cache->stream(stream)) visit(*of);
    }
  }
  void make_more_room(StreamIndex stream);
  void find_shares();
  void aggregate_counter(std::size_t counter);
  void aggregate_live();

  static constinit thread_local Slot slot_;

  const std::uint64_t serial_;
  FigureStore& figures_;
  const std::size_t counters_;
  const std::size_t most_bytes_;
  const std::uint64_t requests_per_look_;
  ReturnsBlocks& returns_;
  std::atomic<bool> abandoned_{false};
  int ending_threads_ = 0;  // threads returning their caches; guarded by AllocatorRegistry::mutex

  // Guards the members below; taken before the caches' locks.
  mutable Ranked<std::mutex, LockRank::kCaches> mutex_;
  std::vector<std::unique_ptr<ThreadCache>> caches_;
  // Counts of ended threads and of threads without a cache: ended_ by index of the counter,
  // ended_streams_ by position(StreamIndex).
  std::span<ThreadCounters> ended_;
  std::vector<StreamCounters> ended_streams_;
  std::atomic<std::size_t> streams_with_room_ = 0;  // size of ended_streams_
  PeakTracker peaks_;
  std::int64_t& peak_live_bytes_;  // of all memory kinds and devices together
  // Working memory, with room for one entry per thread.
  std::vector<AsymmetricLock*> taken_;          // StopTheWorld: locks of all other threads' caches
  HeadroomShares shares_;                       // aggregate()
  std::vector<ThreadCounters*> thread_counts_;  // aggregate_counter()
};

}  // namespace uvm
