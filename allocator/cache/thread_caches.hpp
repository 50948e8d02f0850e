// The caches of an allocator's threads. A cache is made when its thread first needs it, and retired
// when the thread ends. A thread finds its cache by thread-local storage, without a lock.
// StopTheWorld gives access to all caches: meanwhile no other thread is inside its cache, and each
// waits on its next allocation or free.
//
// Order of locks: the list's mutex, then the caches' own locks, then the state lock.
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
  // Threads count in `figures`, which must outlive the caches. An ending thread gives its cached
  // blocks to `returns`.
  ThreadCaches(FigureStore& figures, std::size_t most_bytes, std::uint64_t requests_per_look,
               ReturnsBlocks& returns);
  // Closes.
  ~ThreadCaches();
  ThreadCaches(const ThreadCaches&) = delete;
  ThreadCaches& operator=(const ThreadCaches&) = delete;

  // After it, ending threads return nothing. Waits for threads that are returning their caches. No
  // thread may use the allocator any more, but threads may still end. May be called again.
  void close() noexcept;

  // This thread's cache. nullptr if the thread's local storage is destroyed, in a forked child, and
  // if there is no memory for a cache.
  ThreadCache* local() noexcept { return slot_.serial == serial_ ? slot_.cache : local_slow(); }

  // While one exists, no other thread is inside its cache.
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

  // These move the cached blocks of the stream with the first pool `first`, or of all, to `*out`.
  // close() also ends their caching.
  void flush(PoolIndex first, ThreadCache::CachedKind kind, BlockChain* out) noexcept
      UVM_REQUIRES(this);
  void flush_all(BlockChain* out) noexcept UVM_REQUIRES(this);
  void close(PoolIndex first, BlockChain* out) noexcept UVM_REQUIRES(this);
  // Gives pools to another stream. They were closed, or their stream's thread has ended.
  void rename(PoolIndex first, const StreamKey& key) UVM_REQUIRES(this);
  // Drops what the caches know of a stream none of whose blocks is in use. Its counts are kept.
  void drop(PoolIndex first) noexcept UVM_REQUIRES(this);
  // Lets every thread cache large blocks of the stream; or moves those to `*out` and ends their
  // caching. Both stop the world themselves.
  void set_may_cache_large(PoolIndex first);
  void stop_caching_large(PoolIndex first, BlockChain* out);
  PeakTracker& book() UVM_REQUIRES(this) { return book_; }
  // Sums the counts of all threads at one index, or at each; updates the peaks; and shares the
  // headroom below them among the threads. Allocates nothing.
  void aggregate(std::size_t counter) UVM_REQUIRES(this);
  void aggregate() UVM_REQUIRES(this);
  ThreadCounters sum(std::size_t counter) const UVM_REQUIRES(this);
  std::int64_t peak_live_bytes() const UVM_REQUIRES(this) { return peak_live_bytes_; }
  // Counts of the stream with the first pool `first`. Its peak is the sum of the threads' peaks.
  StreamCounters sum_of_stream(PoolIndex first) const UVM_REQUIRES(this);
  std::size_t cached_bytes() const UVM_REQUIRES(this);
  // Bytes of the caches' own tables.
  std::size_t bytes() const UVM_REQUIRES(this);

  // Called before a block of the stream with the first pool `first` is handed out, so that
  // count_elsewhere() and the end of a thread allocate nothing. Takes the lock itself.
  void make_room(PoolIndex first) {
    if (!has_room(first)) make_more_room(first);
  }
  bool has_room(PoolIndex first) const {
    return first / kPoolsPerStream < streams_with_room_.load(std::memory_order_acquire);
  }
  // Counts for a thread that has no cache, or whose cache does not know the stream: calls
  // count(ThreadCounters&, StreamCounters&). Stops the world itself.
  template <class Count>
  void count_elsewhere(Count count, std::size_t counter, PoolIndex first) noexcept {
    const StopTheWorld stopped(*this);
    count(ended_[counter], ended_streams_[first / kPoolsPerStream]);
    aggregate();
  }

  // In a forked child: this thread loses its cache, and no thread gets one any more.
  void abandon() noexcept;

  // Around a fork: lock and unlock the list of all allocators, which ending threads search.
  static void lock_list_for_fork() UVM_NOT_ANALYSED;
  static void unlock_list_after_fork() UVM_NOT_ANALYSED;

 private:
  friend struct ThreadExitHook;
  struct Slot {
    std::uint64_t serial = 0;  // of the allocator that owns the cache
    ThreadCache* cache = nullptr;
  };

  ThreadCache* local_slow() noexcept;
  ThreadCache* add_cache();
  void retire(ThreadCache* cache) noexcept;
  void take_out(ThreadCache* cache, BlockChain* blocks, std::vector<PoolIndex>* streams) noexcept;
  void make_more_room(PoolIndex first);
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
  int ending_threads_ = 0;  // that are returning caches; guarded by the mutex of all allocators

  // Guards what follows; taken before the caches' locks.
  mutable Ranked<std::mutex, LockRank::kCaches> mutex_;
  std::vector<std::unique_ptr<ThreadCache>> caches_;
  // Counts of threads without a cache: by index, and by first pool / kPoolsPerStream.
  std::span<ThreadCounters> ended_;
  std::vector<StreamCounters> ended_streams_;
  std::atomic<std::size_t> streams_with_room_ = 0;  // size of ended_streams_
  PeakTracker book_;
  std::int64_t& peak_live_bytes_;  // of all facades and devices together
  // Working memory, with room for one entry of each thread.
  std::vector<AsymmetricLock*> taken_;          // StopTheWorld: all locks but its thread's own
  HeadroomShares shares_;                       // aggregate()
  std::vector<ThreadCounters*> thread_counts_;  // aggregate_counter()
};

}  // namespace uvm
