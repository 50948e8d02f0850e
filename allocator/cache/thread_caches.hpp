// The caches of an allocator's threads: made when a thread first needs one, retired when it ends. A
// thread finds its own by thread-local storage, without a lock. StopTheWorld gives access to all of
// them: no thread is inside its cache meanwhile, and each waits on its next allocation or free.
//
// Rank of locks: the list's mutex, then the caches' own locks, then the state lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "allocator/cache/thread_cache.hpp"
#include "allocator/counters/figure_store.hpp"
#include "allocator/counters/peak_book.hpp"
#include "runtime/ranked.hpp"

namespace uvm {

class UVM_CAPABILITY("stopped world") ThreadCaches {
 public:
  // Threads count in `figures`, which outlives the caches. When a thread ends, `retired` gets its
  // cached blocks and the first pools of the streams that it used, on that thread and without
  // locks. It must not throw.
  using Retired = std::function<void(BlockChain blocks, const std::vector<PoolIndex>& streams)>;
  ThreadCaches(FigureStore& figures, std::size_t most_bytes, std::uint64_t requests_per_look,
               Retired retired);
  // Closes.
  ~ThreadCaches();
  ThreadCaches(const ThreadCaches&) = delete;
  ThreadCaches& operator=(const ThreadCaches&) = delete;

  // From now on threads that end return nothing; waits for a thread that does so now. No thread may
  // use the allocator any more, but some may still end. May be called again.
  void close() noexcept;

  // This thread's cache. nullptr in a thread whose thread-local storage is destroyed, in a forked
  // child, and without memory for a cache.
  ThreadCache* local() noexcept { return slot_.serial == serial_ ? slot_.cache : local_slow(); }

  // No thread is inside its cache while one is alive.
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

  // These move the blocks of the stream with that first pool, or all, to `*out`.
  void flush(PoolIndex first, ThreadCache::Kept kept, BlockChain* out) noexcept UVM_REQUIRES(this);
  void flush_all(BlockChain* out) noexcept UVM_REQUIRES(this);
  void close(PoolIndex first, BlockChain* out) noexcept UVM_REQUIRES(this);
  // Pools that were closed, or belonged to a thread that has ended, get another stream.
  void rename(PoolIndex first, const StreamKey& key) UVM_REQUIRES(this);
  // Every thread caches large blocks of the stream from now on, or moves them to `*out` and caches
  // none. These stop the world themselves.
  void set_may_cache_large(PoolIndex first);
  void stop_caching_large(PoolIndex first, BlockChain* out);
  PeakBook& book() UVM_REQUIRES(this) { return book_; }
  // Adds up the present sums, of one index or of all, notes new peaks and shares out the room below
  // them. These allocate nothing.
  void add_up(std::size_t counter) UVM_REQUIRES(this);
  void add_up() UVM_REQUIRES(this);
  Tally sum(std::size_t counter) const UVM_REQUIRES(this);
  std::int64_t peak_live_bytes() const UVM_REQUIRES(this) { return peak_live_bytes_; }
  // Counts of the stream with that first pool; peaks are sums of the threads' own.
  StreamTally sum_of_stream(PoolIndex first) const UVM_REQUIRES(this);
  std::size_t cached_bytes() const UVM_REQUIRES(this);
  // Bytes of the caches' own tables.
  std::size_t bytes() const UVM_REQUIRES(this);

  // Before a block of the stream with that first pool is handed out, so that count_elsewhere() and
  // the end of a thread allocate nothing. Takes the lock itself.
  void make_room(PoolIndex first) {
    if (!has_room(first)) make_more_room(first);
  }
  bool has_room(PoolIndex first) const {
    return first / kPoolsPerStream < streams_with_room_.load(std::memory_order_acquire);
  }
  // Counts for a thread whose cache does not know the stream with that first pool:
  // count(Tally&, StreamTally&). Stops the world itself.
  template <class Count>
  void count_elsewhere(Count count, std::size_t counter, PoolIndex first) noexcept {
    const StopTheWorld stopped(*this);
    count(ended_[counter], ended_streams_[first / kPoolsPerStream]);
    add_up();
  }

  // In the child of a fork: this thread's cache is out of use, and no thread gets one any more.
  void abandon() noexcept;

  // Around a fork: nobody is in the list of all allocators, which threads that end look into. The
  // first takes the lock that the second releases.
  static void lock_list_for_fork() UVM_NOT_ANALYSED;
  static void unlock_list_after_fork() UVM_NOT_ANALYSED;

 private:
  friend struct ThreadEnd;
  struct Slot {
    std::uint64_t serial = 0;  // of the allocator whose cache it is
    ThreadCache* cache = nullptr;
  };

  ThreadCache* local_slow() noexcept;
  ThreadCache* add_cache();
  void retire(ThreadCache* cache) noexcept;
  void take_out(ThreadCache* cache, BlockChain* blocks, std::vector<PoolIndex>* streams) noexcept;
  void make_more_room(PoolIndex first);
  void find_shares();
  void add_up_counter(std::size_t counter);
  void add_up_live();

  static constinit thread_local Slot slot_;

  const std::uint64_t serial_;
  FigureStore& figures_;
  const std::size_t counters_;
  const std::size_t most_bytes_;
  const std::uint64_t requests_per_look_;
  const Retired retired_;
  std::atomic<bool> abandoned_{false};
  int ending_threads_ = 0;  // that return their caches now; guarded by the list of allocators

  // Guards what follows; taken before the caches' locks.
  mutable Ranked<std::mutex, LockRank::kCaches> mutex_;
  std::vector<std::unique_ptr<ThreadCache>> caches_;
  // Counts of threads without a cache: by index, and by first pool / kPoolsPerStream.
  std::span<Tally> ended_;
  std::vector<StreamTally> ended_streams_;
  std::atomic<std::size_t> streams_with_room_ = 0;  // its size
  PeakBook book_;
  std::int64_t& peak_live_bytes_;  // of all facades and devices together
  // These have room for one entry of each thread.
  std::vector<AsymmetricLock*> taken_;  // by StopTheWorld: all but its thread's own
  RoomShares shares_;                   // of add_up(): of caches_
  std::vector<Tally*> tallies_;         // of add_up_counter()
};

}  // namespace uvm
